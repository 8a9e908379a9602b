"""GRPO by verl's own trainer: on a laptop's CPU, on one GPU, on many nodes.

Decided here: what our groups mean to verl (`mapping`), which attempts an update is made of (`agent_loop`, `refill`),
how a run is started, watched, continued and ended (`run`, `driver`), what the runs of a sweep share (`keeper`), and
which checkpoint is the result (`checkpoints`). Left to others: the episode, tracking, and the optimiser itself, which
is verl's. Importing this room imports neither verl nor torch.
"""

from tbexp.training.keeping import kept
from tbexp.training.run import TrainResult, chosen_weights, made_before, problems, train
from tbexp.training.weights import fault as weights_fault

__all__ = ["TrainResult", "chosen_weights", "kept", "made_before", "problems", "train", "weights_fault"]
