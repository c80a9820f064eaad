"""One file per way of training that ends in an ensemble. `covey.fit` takes them where it takes a method."""

from covey.trainings.economical import Economical
from covey.trainings.fge import FGE
from covey.trainings.late_phase import LatePhase
from covey.trainings.late_start import Late, late
from covey.trainings.single import Single
from covey.trainings.snapshot import Snapshot
from covey.trainings.swag import SWAG
from covey.trainings.trajectory import gather

__all__ = ["FGE", "SWAG", "Economical", "Late", "LatePhase", "Single", "Snapshot", "gather", "late"]
