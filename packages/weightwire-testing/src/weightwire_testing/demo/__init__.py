"""The demo: a small model is trained on real sentences, and served while it is trained.

``command`` is what is typed; ``play`` is the loop of training, pushing and comparing; ``training`` is the trainer;
``serving`` starts the engine; ``showing`` is what is seen of it.
"""
