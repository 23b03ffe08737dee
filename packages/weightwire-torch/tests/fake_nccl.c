/* What a libnccl looks like from outside: it checks how it is called, and does next to nothing. */
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 22907
#endif

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
typedef struct { char internal[128]; } UniqueId;
typedef struct { size_t size; unsigned int magic, version; int blocking; } Config;

static int looks, broken, handle;
static const char *last = "";

int ncclGetVersion(int *version) { *version = VERSION; return SUCCESS; }
const char *ncclGetErrorString(int result) { return result == REMOTE_ERROR ? "remote process exited" : "invalid argument"; }
const char *ncclGetLastError(void *comm) { return comm ? "" : last; }

int ncclGetUniqueId(UniqueId *id) {
  for (int i = 0; i < 128; i++) id->internal[i] = (char)i;
  return SUCCESS;
}

int ncclCommInitRankConfig(void **comm, int nranks, UniqueId id, int rank, Config *config) {
  for (int i = 0; i < 128; i++)
    if (id.internal[i] != (char)i) { last = "the id"; return INVALID_ARGUMENT; }
  if (nranks != 3 || rank != 1) { last = "the ranks"; return INVALID_ARGUMENT; }
  if (config->size != 24 || config->magic != 0xcafebeef || config->version != 21400 || config->blocking != 0) {
    last = "the config";
    return INVALID_ARGUMENT;
  }
  *comm = &handle;
  looks = 2;
  return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *comm, int *error) {
  if (comm != &handle) { last = "the handle"; return INVALID_ARGUMENT; }
  *error = broken ? REMOTE_ERROR : looks-- > 0 ? IN_PROGRESS : SUCCESS;
  return SUCCESS;
}

int ncclAllReduce(const float *in, float *out, size_t count, int type, int op, void *comm, void *stream) {
  if (in != out || count != 1 || type != 7 || op != 0 || comm != &handle || stream != (void *)0x77) {
    last = "the all-reduce";
    return INVALID_ARGUMENT;
  }
  *out = *in + 1;
  looks = 1;
  return IN_PROGRESS;
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm, void *stream) {
  if (in != out || type != 1 || root != 0 || comm != &handle || stream != (void *)0x77) {
    last = "the broadcast";
    return INVALID_ARGUMENT;
  }
  memset(out, 0x5a, count);
  broken = count == 13;
  looks = 1;
  return IN_PROGRESS;
}

static int leave(void *comm, const char *how) {
  last = how;
  return comm == &handle ? SUCCESS : INVALID_ARGUMENT;
}
int ncclCommAbort(void *comm) { broken = 0; return leave(comm, "aborted"); }
