"""From a trained ensemble to something smaller and faster: fewer members, one fused module, a file without covey."""

from covey.deploy.benching import Bench, bench
from covey.deploy.distilling import distill
from covey.deploy.exporting import Exported, export
from covey.deploy.fusing import fuse
from covey.deploy.selecting import Selection, select_members
from covey.deploy.session import DeployedEnsemble
from covey.deploy.souping import Soup, soup

__all__ = [
    "Bench",
    "DeployedEnsemble",
    "Exported",
    "Selection",
    "Soup",
    "bench",
    "distill",
    "export",
    "fuse",
    "select_members",
    "soup",
]
