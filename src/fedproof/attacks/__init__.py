"""Adversaries: what they do to the data they hold and to the updates they hand in.

What attacks achieve, and whether certificates survive them, is measured in `fedproof.robustness`.
"""

from fedproof.attacks.attack import Attack, Coalition, Craft, Goal, choose_adversaries
from fedproof.attacks.backdoor import Backdoor
from fedproof.attacks.distributed_backdoor import DistributedBackdoor
from fedproof.attacks.hostile import Hostile, Values
from fedproof.attacks.instances import Instances, JoiningInstances, LeavingInstances
from fedproof.attacks.label_flip import LabelFlip
from fedproof.attacks.membership import Absent, Joining, Leaving, Resized
from fedproof.attacks.model_replacement import ModelReplacement
from fedproof.attacks.perturbed import Direction, MinMax, MinSum
from fedproof.attacks.registry import ATTACKS, build_attack, build_series
from fedproof.attacks.worst_case import Crafted, WorstCase

__all__ = [
    "ATTACKS",
    "Absent",
    "Attack",
    "Backdoor",
    "Coalition",
    "Craft",
    "Crafted",
    "Direction",
    "DistributedBackdoor",
    "Goal",
    "Hostile",
    "Instances",
    "Joining",
    "JoiningInstances",
    "LabelFlip",
    "Leaving",
    "LeavingInstances",
    "MinMax",
    "MinSum",
    "ModelReplacement",
    "Resized",
    "Values",
    "WorstCase",
    "build_attack",
    "build_series",
    "choose_adversaries",
]
