"""Attacks on data and updates, what they cost the attacker, and whether certificates survive them."""

from fedproof.attacks.absent import Absent
from fedproof.attacks.attack import Attack, Craft, Goal, choose_adversaries
from fedproof.attacks.backdoor import Backdoor
from fedproof.attacks.coalition import Coalition
from fedproof.attacks.cost import costs, losses, scores_on
from fedproof.attacks.crafted import Crafted
from fedproof.attacks.distributed_backdoor import DistributedBackdoor
from fedproof.attacks.evaluate import evaluate, evaluate_all
from fedproof.attacks.honest import poisoned
from fedproof.attacks.hostile import Hostile, Values
from fedproof.attacks.instances import Instances, JoiningInstances, LeavingInstances
from fedproof.attacks.joining import Joining, Leaving
from fedproof.attacks.label_flip import LabelFlip
from fedproof.attacks.min_max import MinMax
from fedproof.attacks.min_sum import MinSum
from fedproof.attacks.model_replacement import ModelReplacement
from fedproof.attacks.outcome import Outcome, run_attack, train
from fedproof.attacks.perturbation import Direction
from fedproof.attacks.poisoned_task import attacked_first_updates, under_attack
from fedproof.attacks.registry import ATTACKS, build_attack, build_series
from fedproof.attacks.resized import Resized
from fedproof.attacks.row import Row
from fedproof.attacks.verdict import Verdict, accuracy, verdict
from fedproof.attacks.worst_case import WorstCase

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
    "Outcome",
    "Resized",
    "Row",
    "Values",
    "Verdict",
    "WorstCase",
    "accuracy",
    "attacked_first_updates",
    "build_attack",
    "build_series",
    "choose_adversaries",
    "costs",
    "evaluate",
    "evaluate_all",
    "losses",
    "poisoned",
    "run_attack",
    "scores_on",
    "train",
    "under_attack",
    "verdict",
]
