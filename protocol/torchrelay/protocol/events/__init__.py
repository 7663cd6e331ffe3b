"""What a job tells the world: one dataclass for each event.

docs/events.md documents them; a test holds the two together. Ranks and workers are as in `names`, times in seconds.
"""

from torchrelay.protocol.events.evidence import FaultFired as FaultFired
from torchrelay.protocol.events.evidence import HealthVerdict as HealthVerdict
from torchrelay.protocol.events.evidence import QuarantineCleared as QuarantineCleared
from torchrelay.protocol.events.evidence import Suspected as Suspected
from torchrelay.protocol.events.job import JobFell as JobFell
from torchrelay.protocol.events.job import JobFinished as JobFinished
from torchrelay.protocol.events.job import JobRestarted as JobRestarted
from torchrelay.protocol.events.job import JobStarted as JobStarted
from torchrelay.protocol.events.job import Log as Log
from torchrelay.protocol.events.job import ProgressMade as ProgressMade
from torchrelay.protocol.events.job import RestartDone as RestartDone
from torchrelay.protocol.events.job import TakenOver as TakenOver
from torchrelay.protocol.events.migrations import CheckpointSaved as CheckpointSaved
from torchrelay.protocol.events.migrations import Decision as Decision
from torchrelay.protocol.events.migrations import IncidentKept as IncidentKept
from torchrelay.protocol.events.migrations import MigrationFinished as MigrationFinished
from torchrelay.protocol.events.migrations import MigrationProgressed as MigrationProgressed
from torchrelay.protocol.events.migrations import MigrationStarted as MigrationStarted
from torchrelay.protocol.events.migrations import MoveNotMade as MoveNotMade
from torchrelay.protocol.events.migrations import PhaseChanged as PhaseChanged
from torchrelay.protocol.events.migrations import RankSpread as RankSpread
from torchrelay.protocol.events.occurrence import CLASSES as CLASSES
from torchrelay.protocol.events.occurrence import NAMES as NAMES
from torchrelay.protocol.events.occurrence import Occurrence as Occurrence
from torchrelay.protocol.events.occurrence import from_fields as from_fields
from torchrelay.protocol.events.occurrence import from_job_event as from_job_event
from torchrelay.protocol.events.occurrence import to_job_event as to_job_event
from torchrelay.protocol.events.processes import DevicesUsed as DevicesUsed
from torchrelay.protocol.events.processes import FilesDiffer as FilesDiffer
from torchrelay.protocol.events.processes import JournalsKept as JournalsKept
from torchrelay.protocol.events.processes import NodeLost as NodeLost
from torchrelay.protocol.events.processes import ProcessRespawned as ProcessRespawned
from torchrelay.protocol.events.processes import SpareDropped as SpareDropped
from torchrelay.protocol.events.processes import SpareMade as SpareMade
from torchrelay.protocol.events.processes import SparesAsked as SparesAsked
from torchrelay.protocol.events.processes import SparesChanged as SparesChanged
from torchrelay.protocol.events.processes import WorkerEnded as WorkerEnded
from torchrelay.protocol.events.protection import CoverageKnown as CoverageKnown
from torchrelay.protocol.events.protection import Protection as Protection
from torchrelay.protocol.events.protection import RanksHeld as RanksHeld
from torchrelay.protocol.events.protection import RehearsalFinished as RehearsalFinished
from torchrelay.protocol.events.protection import RehearsalStarted as RehearsalStarted
from torchrelay.protocol.events.protection import ReportMade as ReportMade
