"""What is discovered, and what that costs."""

import subprocess
import sys

import pytest
import torch
import weightwire_trl
from weightwire import discovery
from weightwire_trl.source import claim_trainer


def test_it_is_discovered():
    assert discovery.plugins().registry.owner("weight source", "trainer") == "weightwire-trl"


def test_what_is_no_trainer_is_not_claimed():
    assert claim_trainer(torch.nn.Linear(2, 2)) == 0
    assert claim_trainer("a path") == 0


def test_the_package_loads_nothing_before_a_name_of_it_is_used():
    program = "import sys, weightwire_trl.plugin; print(*{'torch', 'transformers', 'trl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_a_name_that_is_not_there_is_missed_as_everywhere():
    with pytest.raises(AttributeError, match="WeightTransfers"):
        _ = weightwire_trl.WeightTransfers
