from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "signing_request")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    token: str
    signing_request: bytes
    def __init__(self, token: _Optional[str] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("certificate", "authorities")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authorities: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., authorities: _Optional[bytes] = ...) -> None: ...

class LaunchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LaunchReply(_message.Message):
    __slots__ = ("spare", "reason")
    SPARE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    spare: bool
    reason: str
    def __init__(self, spare: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker", "token", "pid", "python_version", "spare", "launch", "again", "generation", "in_force", "protected", "launcher", "gpus")
    class LaunchEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    token: str
    pid: int
    python_version: str
    spare: bool
    launch: _containers.ScalarMap[str, str]
    again: bool
    generation: int
    in_force: int
    protected: bool
    launcher: bool
    gpus: str
    def __init__(self, worker: _Optional[str] = ..., token: _Optional[str] = ..., pid: _Optional[int] = ..., python_version: _Optional[str] = ..., spare: _Optional[bool] = ..., launch: _Optional[_Mapping[str, str]] = ..., again: _Optional[bool] = ..., generation: _Optional[int] = ..., in_force: _Optional[int] = ..., protected: _Optional[bool] = ..., launcher: _Optional[bool] = ..., gpus: _Optional[str] = ...) -> None: ...

class Warm(_message.Message):
    __slots__ = ("torch_version",)
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    torch_version: str
    def __init__(self, torch_version: _Optional[str] = ...) -> None: ...

class Armed(_message.Message):
    __slots__ = ("rank", "world_size", "backend", "torch_version")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    world_size: int
    backend: str
    torch_version: str
    def __init__(self, rank: _Optional[int] = ..., world_size: _Optional[int] = ..., backend: _Optional[str] = ..., torch_version: _Optional[str] = ...) -> None: ...

class Disabled(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("file", "line", "device_state_bytes", "journal_bytes", "tensors", "unprotected", "notes", "gaps", "boundary", "settled", "head_s", "gate_s", "barrier_s", "memory_bytes", "copy_every", "copy_bytes", "copy_s", "copy_failed", "shape", "group_timeout_s", "share", "share_p95", "transfer_encryption")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HEAD_S_FIELD_NUMBER: _ClassVar[int]
    GATE_S_FIELD_NUMBER: _ClassVar[int]
    BARRIER_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_EVERY_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_S_FIELD_NUMBER: _ClassVar[int]
    COPY_FAILED_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARE_P95_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    file: str
    line: int
    device_state_bytes: int
    journal_bytes: int
    tensors: int
    unprotected: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    boundary: int
    settled: bool
    head_s: float
    gate_s: float
    barrier_s: float
    memory_bytes: int
    copy_every: int
    copy_bytes: int
    copy_s: float
    copy_failed: str
    shape: int
    group_timeout_s: float
    share: float
    share_p95: float
    transfer_encryption: str
    def __init__(self, file: _Optional[str] = ..., line: _Optional[int] = ..., device_state_bytes: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., tensors: _Optional[int] = ..., unprotected: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., boundary: _Optional[int] = ..., settled: _Optional[bool] = ..., head_s: _Optional[float] = ..., gate_s: _Optional[float] = ..., barrier_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., copy_every: _Optional[int] = ..., copy_bytes: _Optional[int] = ..., copy_s: _Optional[float] = ..., copy_failed: _Optional[str] = ..., shape: _Optional[int] = ..., group_timeout_s: _Optional[float] = ..., share: _Optional[float] = ..., share_p95: _Optional[float] = ..., transfer_encryption: _Optional[str] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("kind", "effect", "text", "file", "line")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    effect: str
    text: str
    file: str
    line: int
    def __init__(self, kind: _Optional[str] = ..., effect: _Optional[str] = ..., text: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("boundary",)
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    boundary: int
    def __init__(self, boundary: _Optional[int] = ...) -> None: ...

class LinkState(_message.Message):
    __slots__ = ("local", "remote", "unanswered_s", "probed_s", "silent_s", "quiet_s")
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_S_FIELD_NUMBER: _ClassVar[int]
    PROBED_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    QUIET_S_FIELD_NUMBER: _ClassVar[int]
    local: str
    remote: str
    unanswered_s: float
    probed_s: float
    silent_s: float
    quiet_s: float
    def __init__(self, local: _Optional[str] = ..., remote: _Optional[str] = ..., unanswered_s: _Optional[float] = ..., probed_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., quiet_s: _Optional[float] = ...) -> None: ...

class Explained(_message.Message):
    __slots__ = ("request", "stack", "motion", "source", "asleep", "links", "in_own_code", "keeps_lock", "may_be_woken", "own_sockets", "locked")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    MOTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    IN_OWN_CODE_FIELD_NUMBER: _ClassVar[int]
    KEEPS_LOCK_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_WOKEN_FIELD_NUMBER: _ClassVar[int]
    OWN_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    request: int
    stack: _containers.RepeatedScalarFieldContainer[str]
    motion: str
    source: str
    asleep: bool
    links: _containers.RepeatedCompositeFieldContainer[LinkState]
    in_own_code: bool
    keeps_lock: bool
    may_be_woken: bool
    own_sockets: _containers.RepeatedScalarFieldContainer[str]
    locked: bool
    def __init__(self, request: _Optional[int] = ..., stack: _Optional[_Iterable[str]] = ..., motion: _Optional[str] = ..., source: _Optional[str] = ..., asleep: _Optional[bool] = ..., links: _Optional[_Iterable[_Union[LinkState, _Mapping]]] = ..., in_own_code: _Optional[bool] = ..., keeps_lock: _Optional[bool] = ..., may_be_woken: _Optional[bool] = ..., own_sockets: _Optional[_Iterable[str]] = ..., locked: _Optional[bool] = ...) -> None: ...

class Explain(_message.Message):
    __slots__ = ("request", "watch_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WATCH_S_FIELD_NUMBER: _ClassVar[int]
    request: int
    watch_s: float
    def __init__(self, request: _Optional[int] = ..., watch_s: _Optional[float] = ...) -> None: ...

class ReplicaCheck(_message.Message):
    __slots__ = ("boundary", "digests", "ddp_paths", "since", "small", "carried", "place", "derived", "fresh", "renamed")
    class DigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SmallEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RenamedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DDP_PATHS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SMALL_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    RENAMED_FIELD_NUMBER: _ClassVar[int]
    boundary: int
    digests: _containers.ScalarMap[str, str]
    ddp_paths: _containers.RepeatedScalarFieldContainer[str]
    since: int
    small: _containers.ScalarMap[str, str]
    carried: _containers.RepeatedScalarFieldContainer[str]
    place: str
    derived: _containers.RepeatedScalarFieldContainer[str]
    fresh: _containers.RepeatedScalarFieldContainer[str]
    renamed: _containers.ScalarMap[str, str]
    def __init__(self, boundary: _Optional[int] = ..., digests: _Optional[_Mapping[str, str]] = ..., ddp_paths: _Optional[_Iterable[str]] = ..., since: _Optional[int] = ..., small: _Optional[_Mapping[str, str]] = ..., carried: _Optional[_Iterable[str]] = ..., place: _Optional[str] = ..., derived: _Optional[_Iterable[str]] = ..., fresh: _Optional[_Iterable[str]] = ..., renamed: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("generation", "boundary", "gates_passed", "position", "detail", "store_host", "store_port", "collective_log", "log_length", "ddp_layout", "late", "place", "left", "not_averaged", "has_before")
    class LateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    GATES_PASSED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DDP_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    NOT_AVERAGED_FIELD_NUMBER: _ClassVar[int]
    HAS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    boundary: int
    gates_passed: int
    position: str
    detail: str
    store_host: str
    store_port: int
    collective_log: bytes
    log_length: int
    ddp_layout: str
    late: _containers.ScalarMap[str, int]
    place: str
    left: str
    not_averaged: _containers.RepeatedScalarFieldContainer[str]
    has_before: bool
    def __init__(self, generation: _Optional[int] = ..., boundary: _Optional[int] = ..., gates_passed: _Optional[int] = ..., position: _Optional[str] = ..., detail: _Optional[str] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., collective_log: _Optional[bytes] = ..., log_length: _Optional[int] = ..., ddp_layout: _Optional[str] = ..., late: _Optional[_Mapping[str, int]] = ..., place: _Optional[str] = ..., left: _Optional[str] = ..., not_averaged: _Optional[_Iterable[str]] = ..., has_before: _Optional[bool] = ...) -> None: ...

class QuiesceAnswer(_message.Message):
    __slots__ = ("quiesce_id", "accepted", "at_boundary")
    QUIESCE_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    AT_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    quiesce_id: int
    accepted: bool
    at_boundary: int
    def __init__(self, quiesce_id: _Optional[int] = ..., accepted: _Optional[bool] = ..., at_boundary: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("generation", "store_host", "store_port")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    store_host: str
    store_port: int
    def __init__(self, generation: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ...) -> None: ...

class Serving(_message.Message):
    __slots__ = ("generation", "host", "port")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    host: str
    port: int
    def __init__(self, generation: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Transferred(_message.Message):
    __slots__ = ("generation", "size_bytes", "tensors", "elapsed_s", "differed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    DIFFERED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    size_bytes: int
    tensors: int
    elapsed_s: float
    differed: str
    def __init__(self, generation: _Optional[int] = ..., size_bytes: _Optional[int] = ..., tensors: _Optional[int] = ..., elapsed_s: _Optional[float] = ..., differed: _Optional[str] = ...) -> None: ...

class Rebuilt(_message.Message):
    __slots__ = ("generation", "elapsed_s")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    generation: int
    elapsed_s: float
    def __init__(self, generation: _Optional[int] = ..., elapsed_s: _Optional[float] = ...) -> None: ...

class Verified(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("generation", "steps_redone")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_REDONE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    steps_redone: int
    def __init__(self, generation: _Optional[int] = ..., steps_redone: _Optional[int] = ...) -> None: ...

class FirstStep(_message.Message):
    __slots__ = ("generation", "boundary")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    generation: int
    boundary: int
    def __init__(self, generation: _Optional[int] = ..., boundary: _Optional[int] = ...) -> None: ...

class OrderFailed(_message.Message):
    __slots__ = ("generation", "order", "reason", "lasting", "unharmed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LASTING_FIELD_NUMBER: _ClassVar[int]
    UNHARMED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    order: str
    reason: str
    lasting: bool
    unharmed: bool
    def __init__(self, generation: _Optional[int] = ..., order: _Optional[str] = ..., reason: _Optional[str] = ..., lasting: _Optional[bool] = ..., unharmed: _Optional[bool] = ...) -> None: ...

class Rehearsed(_message.Message):
    __slots__ = ("request", "rank", "boundary", "outcome", "reason", "gaps", "nodes", "took_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    request: int
    rank: int
    boundary: int
    outcome: str
    reason: str
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    nodes: int
    took_s: float
    def __init__(self, request: _Optional[int] = ..., rank: _Optional[int] = ..., boundary: _Optional[int] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., nodes: _Optional[int] = ..., took_s: _Optional[float] = ...) -> None: ...

class ScriptFailed(_message.Message):
    __slots__ = ("kind", "message", "exit_code", "boundary", "ours")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    exit_code: int
    boundary: int
    ours: bool
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., exit_code: _Optional[int] = ..., boundary: _Optional[int] = ..., ours: _Optional[bool] = ...) -> None: ...

class Finishing(_message.Message):
    __slots__ = ("boundary",)
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    boundary: int
    def __init__(self, boundary: _Optional[int] = ...) -> None: ...

class FaultInjected(_message.Message):
    __slots__ = ("fault", "boundary")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    fault: str
    boundary: int
    def __init__(self, fault: _Optional[str] = ..., boundary: _Optional[int] = ...) -> None: ...

class MigrationWanted(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Unfit(_message.Message):
    __slots__ = ("reason", "by_script")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_SCRIPT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    by_script: bool
    def __init__(self, reason: _Optional[str] = ..., by_script: _Optional[bool] = ...) -> None: ...

class CommunicationFailed(_message.Message):
    __slots__ = ("reason", "age_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    age_s: float
    def __init__(self, reason: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class FilesKept(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class AsideSet(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class BytesDone(_message.Message):
    __slots__ = ("generation", "done_bytes", "total_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    done_bytes: int
    total_bytes: int
    def __init__(self, generation: _Optional[int] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class CheckpointSaved(_message.Message):
    __slots__ = ("generation", "size_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    size_bytes: int
    def __init__(self, generation: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class JournalsCopied(_message.Message):
    __slots__ = ("node", "boundary")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    node: str
    boundary: int
    def __init__(self, node: _Optional[str] = ..., boundary: _Optional[int] = ...) -> None: ...

class JournalCopyLost(_message.Message):
    __slots__ = ("node", "reason")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NumberAlarm(_message.Message):
    __slots__ = ("what", "boundary", "value", "mean", "action", "text")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    what: str
    boundary: int
    value: float
    mean: float
    action: str
    text: str
    def __init__(self, what: _Optional[str] = ..., boundary: _Optional[int] = ..., value: _Optional[float] = ..., mean: _Optional[float] = ..., action: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class CopyReady(_message.Message):
    __slots__ = ("boundary", "host", "port", "token")
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    boundary: int
    host: str
    port: int
    token: str
    def __init__(self, boundary: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class CopyTaken(_message.Message):
    __slots__ = ("rank", "boundary", "size_bytes", "reason")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    boundary: int
    size_bytes: int
    reason: str
    def __init__(self, rank: _Optional[int] = ..., boundary: _Optional[int] = ..., size_bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ShimReport(_message.Message):
    __slots__ = ("hello", "warm", "armed", "disabled", "report", "replica_check", "standing", "quiesce_answer", "prepared", "serving", "transferred", "rebuilt", "verified", "resumed", "first_step", "order_failed", "script_failed", "finishing", "fault_injected", "migration_wanted", "unfit", "communication_failed", "checkpoint_saved", "bytes_done", "held", "explained", "journals_copied", "journal_copy_lost", "copy_ready", "copy_taken", "number_alarm", "files_kept", "aside_set", "rehearsed", "pong")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_CHECK_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    ORDER_FAILED_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FAILED_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    FAULT_INJECTED_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_WANTED_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FAILED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SAVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    EXPLAINED_FIELD_NUMBER: _ClassVar[int]
    JOURNALS_COPIED_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_COPY_LOST_FIELD_NUMBER: _ClassVar[int]
    COPY_READY_FIELD_NUMBER: _ClassVar[int]
    COPY_TAKEN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_ALARM_FIELD_NUMBER: _ClassVar[int]
    FILES_KEPT_FIELD_NUMBER: _ClassVar[int]
    ASIDE_SET_FIELD_NUMBER: _ClassVar[int]
    REHEARSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    warm: Warm
    armed: Armed
    disabled: Disabled
    report: Report
    replica_check: ReplicaCheck
    standing: Standing
    quiesce_answer: QuiesceAnswer
    prepared: Prepared
    serving: Serving
    transferred: Transferred
    rebuilt: Rebuilt
    verified: Verified
    resumed: Resumed
    first_step: FirstStep
    order_failed: OrderFailed
    script_failed: ScriptFailed
    finishing: Finishing
    fault_injected: FaultInjected
    migration_wanted: MigrationWanted
    unfit: Unfit
    communication_failed: CommunicationFailed
    checkpoint_saved: CheckpointSaved
    bytes_done: BytesDone
    held: Held
    explained: Explained
    journals_copied: JournalsCopied
    journal_copy_lost: JournalCopyLost
    copy_ready: CopyReady
    copy_taken: CopyTaken
    number_alarm: NumberAlarm
    files_kept: FilesKept
    aside_set: AsideSet
    rehearsed: Rehearsed
    pong: Pong
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., warm: _Optional[_Union[Warm, _Mapping]] = ..., armed: _Optional[_Union[Armed, _Mapping]] = ..., disabled: _Optional[_Union[Disabled, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., replica_check: _Optional[_Union[ReplicaCheck, _Mapping]] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ..., quiesce_answer: _Optional[_Union[QuiesceAnswer, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., serving: _Optional[_Union[Serving, _Mapping]] = ..., transferred: _Optional[_Union[Transferred, _Mapping]] = ..., rebuilt: _Optional[_Union[Rebuilt, _Mapping]] = ..., verified: _Optional[_Union[Verified, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., first_step: _Optional[_Union[FirstStep, _Mapping]] = ..., order_failed: _Optional[_Union[OrderFailed, _Mapping]] = ..., script_failed: _Optional[_Union[ScriptFailed, _Mapping]] = ..., finishing: _Optional[_Union[Finishing, _Mapping]] = ..., fault_injected: _Optional[_Union[FaultInjected, _Mapping]] = ..., migration_wanted: _Optional[_Union[MigrationWanted, _Mapping]] = ..., unfit: _Optional[_Union[Unfit, _Mapping]] = ..., communication_failed: _Optional[_Union[CommunicationFailed, _Mapping]] = ..., checkpoint_saved: _Optional[_Union[CheckpointSaved, _Mapping]] = ..., bytes_done: _Optional[_Union[BytesDone, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., explained: _Optional[_Union[Explained, _Mapping]] = ..., journals_copied: _Optional[_Union[JournalsCopied, _Mapping]] = ..., journal_copy_lost: _Optional[_Union[JournalCopyLost, _Mapping]] = ..., copy_ready: _Optional[_Union[CopyReady, _Mapping]] = ..., copy_taken: _Optional[_Union[CopyTaken, _Mapping]] = ..., number_alarm: _Optional[_Union[NumberAlarm, _Mapping]] = ..., files_kept: _Optional[_Union[FilesKept, _Mapping]] = ..., aside_set: _Optional[_Union[AsideSet, _Mapping]] = ..., rehearsed: _Optional[_Union[Rehearsed, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: str
    def __init__(self, identity: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("worker", "journal", "spare", "env", "refusal", "kept")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    journal: str
    spare: bool
    env: _containers.ScalarMap[str, str]
    refusal: str
    kept: str
    def __init__(self, worker: _Optional[str] = ..., journal: _Optional[str] = ..., spare: _Optional[bool] = ..., env: _Optional[_Mapping[str, str]] = ..., refusal: _Optional[str] = ..., kept: _Optional[str] = ...) -> None: ...

class KeepFile(_message.Message):
    __slots__ = ("generation", "directory", "name", "data", "whole", "last")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    directory: str
    name: str
    data: bytes
    whole: bool
    last: bool
    def __init__(self, generation: _Optional[int] = ..., directory: _Optional[str] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ..., whole: _Optional[bool] = ..., last: _Optional[bool] = ...) -> None: ...

class SetAside(_message.Message):
    __slots__ = ("paths",)
    PATHS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paths: _Optional[_Iterable[str]] = ...) -> None: ...

class EndNow(_message.Message):
    __slots__ = ("exit_code", "again")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    again: bool
    def __init__(self, exit_code: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...

class Protect(_message.Message):
    __slots__ = ("on", "reason", "gate_secret")
    ON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GATE_SECRET_FIELD_NUMBER: _ClassVar[int]
    on: bool
    reason: str
    gate_secret: bytes
    def __init__(self, on: _Optional[bool] = ..., reason: _Optional[str] = ..., gate_secret: _Optional[bytes] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("generation", "rank", "world_size", "env", "set_up")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SET_UP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    world_size: int
    env: _containers.ScalarMap[str, str]
    set_up: bytes
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., env: _Optional[_Mapping[str, str]] = ..., set_up: _Optional[bytes] = ...) -> None: ...

class Rehearse(_message.Message):
    __slots__ = ("request", "rank", "world_size", "boundary", "env", "set_up", "journal")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SET_UP_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    request: int
    rank: int
    world_size: int
    boundary: int
    env: _containers.ScalarMap[str, str]
    set_up: bytes
    journal: bytes
    def __init__(self, request: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., boundary: _Optional[int] = ..., env: _Optional[_Mapping[str, str]] = ..., set_up: _Optional[bytes] = ..., journal: _Optional[bytes] = ...) -> None: ...

class EndRehearsal(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class Interrupt(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class QuiesceAt(_message.Message):
    __slots__ = ("quiesce_id", "generation", "boundary")
    QUIESCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    quiesce_id: int
    generation: int
    boundary: int
    def __init__(self, quiesce_id: _Optional[int] = ..., generation: _Optional[int] = ..., boundary: _Optional[int] = ...) -> None: ...

class QuiesceDecided(_message.Message):
    __slots__ = ("quiesce_id", "go")
    QUIESCE_ID_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    quiesce_id: int
    go: bool
    def __init__(self, quiesce_id: _Optional[int] = ..., go: _Optional[bool] = ...) -> None: ...

class Serve(_message.Message):
    __slots__ = ("generation", "boundary", "token", "peer_host", "kept", "behind_update")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PEER_HOST_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    BEHIND_UPDATE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    boundary: int
    token: str
    peer_host: str
    kept: str
    behind_update: bool
    def __init__(self, generation: _Optional[int] = ..., boundary: _Optional[int] = ..., token: _Optional[str] = ..., peer_host: _Optional[str] = ..., kept: _Optional[str] = ..., behind_update: _Optional[bool] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("generation", "target", "action", "journal", "gate_journal", "collective_log", "ddp_layout", "donor_host", "donor_port", "token", "directory", "offline", "late", "donor_collectives", "place", "kept", "set_up", "after", "more_hosts", "more_ports", "left", "carried", "compared", "lacking")
    class LateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    GATE_JOURNAL_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_LOG_FIELD_NUMBER: _ClassVar[int]
    DDP_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    DONOR_HOST_FIELD_NUMBER: _ClassVar[int]
    DONOR_PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    DONOR_COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SET_UP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MORE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    MORE_PORTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    generation: int
    target: int
    action: str
    journal: bytes
    gate_journal: bytes
    collective_log: bytes
    ddp_layout: str
    donor_host: str
    donor_port: int
    token: str
    directory: str
    offline: bool
    late: _containers.ScalarMap[str, int]
    donor_collectives: int
    place: str
    kept: str
    set_up: bytes
    after: bytes
    more_hosts: _containers.RepeatedScalarFieldContainer[str]
    more_ports: _containers.RepeatedScalarFieldContainer[int]
    left: str
    carried: _containers.RepeatedScalarFieldContainer[str]
    compared: int
    lacking: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generation: _Optional[int] = ..., target: _Optional[int] = ..., action: _Optional[str] = ..., journal: _Optional[bytes] = ..., gate_journal: _Optional[bytes] = ..., collective_log: _Optional[bytes] = ..., ddp_layout: _Optional[str] = ..., donor_host: _Optional[str] = ..., donor_port: _Optional[int] = ..., token: _Optional[str] = ..., directory: _Optional[str] = ..., offline: _Optional[bool] = ..., late: _Optional[_Mapping[str, int]] = ..., donor_collectives: _Optional[int] = ..., place: _Optional[str] = ..., kept: _Optional[str] = ..., set_up: _Optional[bytes] = ..., after: _Optional[bytes] = ..., more_hosts: _Optional[_Iterable[str]] = ..., more_ports: _Optional[_Iterable[int]] = ..., left: _Optional[str] = ..., carried: _Optional[_Iterable[str]] = ..., compared: _Optional[int] = ..., lacking: _Optional[_Iterable[str]] = ...) -> None: ...

class Rebuild(_message.Message):
    __slots__ = ("generation", "target", "store_host", "store_port", "gate_secret")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    GATE_SECRET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    target: int
    store_host: str
    store_port: int
    gate_secret: bytes
    def __init__(self, generation: _Optional[int] = ..., target: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., gate_secret: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ("generation", "directory", "save_tensors", "target")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SAVE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    directory: str
    save_tensors: bool
    target: int
    def __init__(self, generation: _Optional[int] = ..., directory: _Optional[str] = ..., save_tensors: _Optional[bool] = ..., target: _Optional[int] = ...) -> None: ...

class MayFinish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PassGate(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class CopyJournals(_message.Message):
    __slots__ = ("node", "host", "port", "token")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    port: int
    token: bytes
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class NumbersDecided(_message.Message):
    __slots__ = ("boundary",)
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    boundary: int
    def __init__(self, boundary: _Optional[int] = ...) -> None: ...

class KeepCopies(_message.Message):
    __slots__ = ("on", "reason", "buddy", "buddy_host", "every", "own")
    ON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUDDY_FIELD_NUMBER: _ClassVar[int]
    BUDDY_HOST_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    on: bool
    reason: str
    buddy: int
    buddy_host: str
    every: int
    own: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, on: _Optional[bool] = ..., reason: _Optional[str] = ..., buddy: _Optional[int] = ..., buddy_host: _Optional[str] = ..., every: _Optional[int] = ..., own: _Optional[_Iterable[str]] = ...) -> None: ...

class LiftGates(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class TakeCopy(_message.Message):
    __slots__ = ("rank", "boundary", "host", "port", "token")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    rank: int
    boundary: int
    host: str
    port: int
    token: str
    def __init__(self, rank: _Optional[int] = ..., boundary: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class ShimOrder(_message.Message):
    __slots__ = ("ack", "protect", "assign", "interrupt", "quiesce_at", "quiesce_decided", "serve", "plan", "rebuild", "commit", "abandon", "save_checkpoint", "may_finish", "pass_gate", "explain", "copy_journals", "begin", "end_now", "keep_copies", "lift_gates", "take_copy", "numbers_decided", "keep_file", "set_aside", "clear_checkpoints", "rehearse", "end_rehearsal", "ping")
    ACK_FIELD_NUMBER: _ClassVar[int]
    PROTECT_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_AT_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_DECIDED_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MAY_FINISH_FIELD_NUMBER: _ClassVar[int]
    PASS_GATE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    COPY_JOURNALS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_NOW_FIELD_NUMBER: _ClassVar[int]
    KEEP_COPIES_FIELD_NUMBER: _ClassVar[int]
    LIFT_GATES_FIELD_NUMBER: _ClassVar[int]
    TAKE_COPY_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_DECIDED_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILE_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    CLEAR_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    REHEARSE_FIELD_NUMBER: _ClassVar[int]
    END_REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    protect: Protect
    assign: Assign
    interrupt: Interrupt
    quiesce_at: QuiesceAt
    quiesce_decided: QuiesceDecided
    serve: Serve
    plan: Plan
    rebuild: Rebuild
    commit: Commit
    abandon: Abandon
    save_checkpoint: SaveCheckpoint
    may_finish: MayFinish
    pass_gate: PassGate
    explain: Explain
    copy_journals: CopyJournals
    begin: Begin
    end_now: EndNow
    keep_copies: KeepCopies
    lift_gates: LiftGates
    take_copy: TakeCopy
    numbers_decided: NumbersDecided
    keep_file: KeepFile
    set_aside: SetAside
    clear_checkpoints: ClearCheckpoints
    rehearse: Rehearse
    end_rehearsal: EndRehearsal
    ping: Ping
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ..., protect: _Optional[_Union[Protect, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., quiesce_at: _Optional[_Union[QuiesceAt, _Mapping]] = ..., quiesce_decided: _Optional[_Union[QuiesceDecided, _Mapping]] = ..., serve: _Optional[_Union[Serve, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., rebuild: _Optional[_Union[Rebuild, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., save_checkpoint: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., may_finish: _Optional[_Union[MayFinish, _Mapping]] = ..., pass_gate: _Optional[_Union[PassGate, _Mapping]] = ..., explain: _Optional[_Union[Explain, _Mapping]] = ..., copy_journals: _Optional[_Union[CopyJournals, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., end_now: _Optional[_Union[EndNow, _Mapping]] = ..., keep_copies: _Optional[_Union[KeepCopies, _Mapping]] = ..., lift_gates: _Optional[_Union[LiftGates, _Mapping]] = ..., take_copy: _Optional[_Union[TakeCopy, _Mapping]] = ..., numbers_decided: _Optional[_Union[NumbersDecided, _Mapping]] = ..., keep_file: _Optional[_Union[KeepFile, _Mapping]] = ..., set_aside: _Optional[_Union[SetAside, _Mapping]] = ..., clear_checkpoints: _Optional[_Union[ClearCheckpoints, _Mapping]] = ..., rehearse: _Optional[_Union[Rehearse, _Mapping]] = ..., end_rehearsal: _Optional[_Union[EndRehearsal, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class ClearCheckpoints(_message.Message):
    __slots__ = ("folder", "job", "keep", "job_id", "run_id")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    folder: str
    job: str
    keep: int
    job_id: str
    run_id: str
    def __init__(self, folder: _Optional[str] = ..., job: _Optional[str] = ..., keep: _Optional[int] = ..., job_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker", "rank", "pid", "launch", "generation", "protected", "in_force", "gate_secret")
    class LaunchEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    GATE_SECRET_FIELD_NUMBER: _ClassVar[int]
    worker: str
    rank: int
    pid: int
    launch: _containers.ScalarMap[str, str]
    generation: int
    protected: bool
    in_force: int
    gate_secret: bytes
    def __init__(self, worker: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., launch: _Optional[_Mapping[str, str]] = ..., generation: _Optional[int] = ..., protected: _Optional[bool] = ..., in_force: _Optional[int] = ..., gate_secret: _Optional[bytes] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("script", "sha256", "sources", "python", "torch", "inject", "resume_command", "jit_dirs", "jit_marks", "jit_given", "imported", "sources_cut", "nnodes", "nproc_per_node", "master_port", "node", "check")
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    INJECT_FIELD_NUMBER: _ClassVar[int]
    RESUME_COMMAND_FIELD_NUMBER: _ClassVar[int]
    JIT_DIRS_FIELD_NUMBER: _ClassVar[int]
    JIT_MARKS_FIELD_NUMBER: _ClassVar[int]
    JIT_GIVEN_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_CUT_FIELD_NUMBER: _ClassVar[int]
    NNODES_FIELD_NUMBER: _ClassVar[int]
    NPROC_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    script: str
    sha256: str
    sources: _containers.ScalarMap[str, str]
    python: str
    torch: str
    inject: _containers.RepeatedScalarFieldContainer[str]
    resume_command: str
    jit_dirs: _containers.RepeatedScalarFieldContainer[str]
    jit_marks: _containers.RepeatedScalarFieldContainer[str]
    jit_given: bool
    imported: _containers.RepeatedScalarFieldContainer[str]
    sources_cut: bool
    nnodes: int
    nproc_per_node: int
    master_port: int
    node: str
    check: str
    def __init__(self, script: _Optional[str] = ..., sha256: _Optional[str] = ..., sources: _Optional[_Mapping[str, str]] = ..., python: _Optional[str] = ..., torch: _Optional[str] = ..., inject: _Optional[_Iterable[str]] = ..., resume_command: _Optional[str] = ..., jit_dirs: _Optional[_Iterable[str]] = ..., jit_marks: _Optional[_Iterable[str]] = ..., jit_given: _Optional[bool] = ..., imported: _Optional[_Iterable[str]] = ..., sources_cut: _Optional[bool] = ..., nnodes: _Optional[int] = ..., nproc_per_node: _Optional[int] = ..., master_port: _Optional[int] = ..., node: _Optional[str] = ..., check: _Optional[str] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("node", "node_rank", "host", "workers", "session", "first", "copies_port", "copies_token", "copies_of", "job", "epoch", "candidate", "program", "spares")
    class CopiesOfEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COPIES_PORT_FIELD_NUMBER: _ClassVar[int]
    COPIES_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COPIES_OF_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    node: str
    node_rank: int
    host: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    session: str
    first: int
    copies_port: int
    copies_token: bytes
    copies_of: _containers.ScalarMap[str, int]
    job: str
    epoch: int
    candidate: str
    program: Program
    spares: int
    def __init__(self, node: _Optional[str] = ..., node_rank: _Optional[int] = ..., host: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., session: _Optional[str] = ..., first: _Optional[int] = ..., copies_port: _Optional[int] = ..., copies_token: _Optional[bytes] = ..., copies_of: _Optional[_Mapping[str, int]] = ..., job: _Optional[str] = ..., epoch: _Optional[int] = ..., candidate: _Optional[str] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., spares: _Optional[int] = ...) -> None: ...

class Room(_message.Message):
    __slots__ = ("path", "free_bytes", "problem")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    path: str
    free_bytes: int
    problem: str
    def __init__(self, path: _Optional[str] = ..., free_bytes: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class RoomLeft(_message.Message):
    __slots__ = ("memory", "folders")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FOLDERS_FIELD_NUMBER: _ClassVar[int]
    memory: Room
    folders: _containers.RepeatedCompositeFieldContainer[Room]
    def __init__(self, memory: _Optional[_Union[Room, _Mapping]] = ..., folders: _Optional[_Iterable[_Union[Room, _Mapping]]] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("worker", "report")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    report: ShimReport
    def __init__(self, worker: _Optional[str] = ..., report: _Optional[_Union[ShimReport, _Mapping]] = ...) -> None: ...

class WorkerExited(_message.Message):
    __slots__ = ("worker", "exit_code", "signal", "fenced")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    exit_code: int
    signal: int
    fenced: bool
    def __init__(self, worker: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., fenced: _Optional[bool] = ...) -> None: ...

class WorkerProgress(_message.Message):
    __slots__ = ("worker", "boundary", "gates_passed", "phase", "waiting", "count", "process_state", "still_s", "idle_s", "waited_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    GATES_PASSED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STATE_FIELD_NUMBER: _ClassVar[int]
    STILL_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    worker: str
    boundary: int
    gates_passed: int
    phase: str
    waiting: bool
    count: int
    process_state: str
    still_s: float
    idle_s: float
    waited_s: float
    def __init__(self, worker: _Optional[str] = ..., boundary: _Optional[int] = ..., gates_passed: _Optional[int] = ..., phase: _Optional[str] = ..., waiting: _Optional[bool] = ..., count: _Optional[int] = ..., process_state: _Optional[str] = ..., still_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., waited_s: _Optional[float] = ...) -> None: ...

class OrdersTaken(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerProgress]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerProgress, _Mapping]]] = ...) -> None: ...

class JournalContent(_message.Message):
    __slots__ = ("worker", "boundaries", "gates", "set_up", "after", "checks")
    class BoundariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    class GatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    class AfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    class ChecksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: bytes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    SET_UP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    boundaries: _containers.ScalarMap[int, bytes]
    gates: _containers.ScalarMap[int, bytes]
    set_up: bytes
    after: _containers.ScalarMap[int, bytes]
    checks: _containers.ScalarMap[int, bytes]
    def __init__(self, worker: _Optional[str] = ..., boundaries: _Optional[_Mapping[int, bytes]] = ..., gates: _Optional[_Mapping[int, bytes]] = ..., set_up: _Optional[bytes] = ..., after: _Optional[_Mapping[int, bytes]] = ..., checks: _Optional[_Mapping[int, bytes]] = ...) -> None: ...

class WorkerStarted(_message.Message):
    __slots__ = ("worker", "rank", "pid", "launch")
    class LaunchEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    worker: str
    rank: int
    pid: int
    launch: _containers.ScalarMap[str, str]
    def __init__(self, worker: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., launch: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LateWorker(_message.Message):
    __slots__ = ("worker", "rank", "pid", "reason", "in_place_of")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_OF_FIELD_NUMBER: _ClassVar[int]
    worker: str
    rank: int
    pid: int
    reason: str
    in_place_of: str
    def __init__(self, worker: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., reason: _Optional[str] = ..., in_place_of: _Optional[str] = ...) -> None: ...

class RehearserStarted(_message.Message):
    __slots__ = ("worker", "pid", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: str
    pid: int
    reason: str
    def __init__(self, worker: _Optional[str] = ..., pid: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class KeptCopy(_message.Message):
    __slots__ = ("rank", "boundary", "directory", "journal", "set_up", "ddp_layout")
    RANK_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SET_UP_FIELD_NUMBER: _ClassVar[int]
    DDP_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    boundary: int
    directory: str
    journal: bytes
    set_up: bytes
    ddp_layout: str
    def __init__(self, rank: _Optional[int] = ..., boundary: _Optional[int] = ..., directory: _Optional[str] = ..., journal: _Optional[bytes] = ..., set_up: _Optional[bytes] = ..., ddp_layout: _Optional[str] = ...) -> None: ...

class KeptCopies(_message.Message):
    __slots__ = ("copies", "last")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    copies: _containers.RepeatedCompositeFieldContainer[KeptCopy]
    last: bool
    def __init__(self, copies: _Optional[_Iterable[_Union[KeptCopy, _Mapping]]] = ..., last: _Optional[bool] = ...) -> None: ...

class CheckpointFile(_message.Message):
    __slots__ = ("directory", "name", "data", "reason", "last")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    directory: str
    name: str
    data: bytes
    reason: str
    last: bool
    def __init__(self, directory: _Optional[str] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ..., reason: _Optional[str] = ..., last: _Optional[bool] = ...) -> None: ...

class FoundCheckpoint(_message.Message):
    __slots__ = ("path", "step", "broken", "ours")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    path: str
    step: int
    broken: str
    ours: bool
    def __init__(self, path: _Optional[str] = ..., step: _Optional[int] = ..., broken: _Optional[str] = ..., ours: _Optional[bool] = ...) -> None: ...

class CheckpointsFound(_message.Message):
    __slots__ = ("found", "reason", "of_others")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OF_OTHERS_FIELD_NUMBER: _ClassVar[int]
    found: _containers.RepeatedCompositeFieldContainer[FoundCheckpoint]
    reason: str
    of_others: int
    def __init__(self, found: _Optional[_Iterable[_Union[FoundCheckpoint, _Mapping]]] = ..., reason: _Optional[str] = ..., of_others: _Optional[int] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("agent_hello", "worker_started", "from_worker", "worker_exited", "orders_taken", "progress", "journal_content", "health_signals", "health_sources", "device_checked", "late_worker", "rehearser_started", "kept_copies", "checkpoint_file", "checkpoints_found", "room_left")
    AGENT_HELLO_FIELD_NUMBER: _ClassVar[int]
    WORKER_STARTED_FIELD_NUMBER: _ClassVar[int]
    FROM_WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKER_EXITED_FIELD_NUMBER: _ClassVar[int]
    ORDERS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_CONTENT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CHECKED_FIELD_NUMBER: _ClassVar[int]
    LATE_WORKER_FIELD_NUMBER: _ClassVar[int]
    REHEARSER_STARTED_FIELD_NUMBER: _ClassVar[int]
    KEPT_COPIES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FILE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FOUND_FIELD_NUMBER: _ClassVar[int]
    ROOM_LEFT_FIELD_NUMBER: _ClassVar[int]
    agent_hello: AgentHello
    worker_started: WorkerStarted
    from_worker: FromWorker
    worker_exited: WorkerExited
    orders_taken: OrdersTaken
    progress: Progress
    journal_content: JournalContent
    health_signals: HealthSignals
    health_sources: HealthSources
    device_checked: DeviceChecked
    late_worker: LateWorker
    rehearser_started: RehearserStarted
    kept_copies: KeptCopies
    checkpoint_file: CheckpointFile
    checkpoints_found: CheckpointsFound
    room_left: RoomLeft
    def __init__(self, agent_hello: _Optional[_Union[AgentHello, _Mapping]] = ..., worker_started: _Optional[_Union[WorkerStarted, _Mapping]] = ..., from_worker: _Optional[_Union[FromWorker, _Mapping]] = ..., worker_exited: _Optional[_Union[WorkerExited, _Mapping]] = ..., orders_taken: _Optional[_Union[OrdersTaken, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., journal_content: _Optional[_Union[JournalContent, _Mapping]] = ..., health_signals: _Optional[_Union[HealthSignals, _Mapping]] = ..., health_sources: _Optional[_Union[HealthSources, _Mapping]] = ..., device_checked: _Optional[_Union[DeviceChecked, _Mapping]] = ..., late_worker: _Optional[_Union[LateWorker, _Mapping]] = ..., rehearser_started: _Optional[_Union[RehearserStarted, _Mapping]] = ..., kept_copies: _Optional[_Union[KeptCopies, _Mapping]] = ..., checkpoint_file: _Optional[_Union[CheckpointFile, _Mapping]] = ..., checkpoints_found: _Optional[_Union[CheckpointsFound, _Mapping]] = ..., room_left: _Optional[_Union[RoomLeft, _Mapping]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("worker", "order")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    order: ShimOrder
    def __init__(self, worker: _Optional[str] = ..., order: _Optional[_Union[ShimOrder, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("worker", "again")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    worker: str
    again: bool
    def __init__(self, worker: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class FetchJournal(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class ForgetJournals(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class Inherits(_message.Message):
    __slots__ = ("worker", "checks")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    checks: _containers.RepeatedCompositeFieldContainer[ReplicaCheck]
    def __init__(self, worker: _Optional[str] = ..., checks: _Optional[_Iterable[_Union[ReplicaCheck, _Mapping]]] = ...) -> None: ...

class StopJob(_message.Message):
    __slots__ = ("exit_code", "signal", "reason")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    reason: str
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("count", "orders_session", "orders_first", "answers_every_s")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ORDERS_SESSION_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIRST_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    count: int
    orders_session: str
    orders_first: int
    answers_every_s: float
    def __init__(self, count: _Optional[int] = ..., orders_session: _Optional[str] = ..., orders_first: _Optional[int] = ..., answers_every_s: _Optional[float] = ...) -> None: ...

class LookClosely(_message.Message):
    __slots__ = ("on",)
    ON_FIELD_NUMBER: _ClassVar[int]
    on: bool
    def __init__(self, on: _Optional[bool] = ...) -> None: ...

class TellEvery(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class TellAgain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartWorker(_message.Message):
    __slots__ = ("rank", "in_place_of", "idle", "more")
    RANK_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_OF_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    in_place_of: str
    idle: bool
    more: bool
    def __init__(self, rank: _Optional[int] = ..., in_place_of: _Optional[str] = ..., idle: _Optional[bool] = ..., more: _Optional[bool] = ...) -> None: ...

class RaisePriority(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class StartRehearser(_message.Message):
    __slots__ = ("beside",)
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    beside: str
    def __init__(self, beside: _Optional[str] = ...) -> None: ...

class FetchKept(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartWorkers(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FetchCheckpoint(_message.Message):
    __slots__ = ("directory",)
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    def __init__(self, directory: _Optional[str] = ...) -> None: ...

class FindCheckpoints(_message.Message):
    __slots__ = ("directory", "job")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    directory: str
    job: str
    def __init__(self, directory: _Optional[str] = ..., job: _Optional[str] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("to_worker", "follow", "fence", "fetch_journal", "forget_journals", "inherits", "stop_job", "taken", "look_closely", "tell_every", "tell_again", "check_device", "start_worker", "start_rehearser", "raise_priority", "fetch_kept", "restart_workers", "fetch_checkpoint", "find_checkpoints")
    TO_WORKER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FETCH_JOURNAL_FIELD_NUMBER: _ClassVar[int]
    FORGET_JOURNALS_FIELD_NUMBER: _ClassVar[int]
    INHERITS_FIELD_NUMBER: _ClassVar[int]
    STOP_JOB_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    LOOK_CLOSELY_FIELD_NUMBER: _ClassVar[int]
    TELL_EVERY_FIELD_NUMBER: _ClassVar[int]
    TELL_AGAIN_FIELD_NUMBER: _ClassVar[int]
    CHECK_DEVICE_FIELD_NUMBER: _ClassVar[int]
    START_WORKER_FIELD_NUMBER: _ClassVar[int]
    START_REHEARSER_FIELD_NUMBER: _ClassVar[int]
    RAISE_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FETCH_KEPT_FIELD_NUMBER: _ClassVar[int]
    RESTART_WORKERS_FIELD_NUMBER: _ClassVar[int]
    FETCH_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FIND_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    to_worker: ToWorker
    follow: Follow
    fence: Fence
    fetch_journal: FetchJournal
    forget_journals: ForgetJournals
    inherits: Inherits
    stop_job: StopJob
    taken: Taken
    look_closely: LookClosely
    tell_every: TellEvery
    tell_again: TellAgain
    check_device: CheckDevice
    start_worker: StartWorker
    start_rehearser: StartRehearser
    raise_priority: RaisePriority
    fetch_kept: FetchKept
    restart_workers: RestartWorkers
    fetch_checkpoint: FetchCheckpoint
    find_checkpoints: FindCheckpoints
    def __init__(self, to_worker: _Optional[_Union[ToWorker, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., fetch_journal: _Optional[_Union[FetchJournal, _Mapping]] = ..., forget_journals: _Optional[_Union[ForgetJournals, _Mapping]] = ..., inherits: _Optional[_Union[Inherits, _Mapping]] = ..., stop_job: _Optional[_Union[StopJob, _Mapping]] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., look_closely: _Optional[_Union[LookClosely, _Mapping]] = ..., tell_every: _Optional[_Union[TellEvery, _Mapping]] = ..., tell_again: _Optional[_Union[TellAgain, _Mapping]] = ..., check_device: _Optional[_Union[CheckDevice, _Mapping]] = ..., start_worker: _Optional[_Union[StartWorker, _Mapping]] = ..., start_rehearser: _Optional[_Union[StartRehearser, _Mapping]] = ..., raise_priority: _Optional[_Union[RaisePriority, _Mapping]] = ..., fetch_kept: _Optional[_Union[FetchKept, _Mapping]] = ..., restart_workers: _Optional[_Union[RestartWorkers, _Mapping]] = ..., fetch_checkpoint: _Optional[_Union[FetchCheckpoint, _Mapping]] = ..., find_checkpoints: _Optional[_Union[FindCheckpoints, _Mapping]] = ...) -> None: ...

class Follow(_message.Message):
    __slots__ = ("job", "epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node", "node_rank", "address", "imports", "resume_command")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IMPORTS_FIELD_NUMBER: _ClassVar[int]
    RESUME_COMMAND_FIELD_NUMBER: _ClassVar[int]
    node: str
    node_rank: int
    address: str
    imports: str
    resume_command: str
    def __init__(self, node: _Optional[str] = ..., node_rank: _Optional[int] = ..., address: _Optional[str] = ..., imports: _Optional[str] = ..., resume_command: _Optional[str] = ...) -> None: ...

class LeadRequest(_message.Message):
    __slots__ = ("node_rank", "node", "job", "epoch", "shares")
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    node_rank: int
    node: str
    job: str
    epoch: int
    shares: bool
    def __init__(self, node_rank: _Optional[int] = ..., node: _Optional[str] = ..., job: _Optional[str] = ..., epoch: _Optional[int] = ..., shares: _Optional[bool] = ...) -> None: ...

class LeadReply(_message.Message):
    __slots__ = ("epoch", "job", "node", "members", "begun", "quorum", "shared", "place", "refused", "nodes", "holders", "migrations_begun", "restarts_done", "scripts_begun", "resume_dir", "lease_s", "follows")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    MIGRATIONS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_DONE_FIELD_NUMBER: _ClassVar[int]
    SCRIPTS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    RESUME_DIR_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    node: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    begun: bool
    quorum: bool
    shared: bool
    place: str
    refused: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    holders: _containers.RepeatedScalarFieldContainer[str]
    migrations_begun: int
    restarts_done: int
    scripts_begun: int
    resume_dir: str
    lease_s: float
    follows: int
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., begun: _Optional[bool] = ..., quorum: _Optional[bool] = ..., shared: _Optional[bool] = ..., place: _Optional[str] = ..., refused: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., holders: _Optional[_Iterable[str]] = ..., migrations_begun: _Optional[int] = ..., restarts_done: _Optional[int] = ..., scripts_begun: _Optional[int] = ..., resume_dir: _Optional[str] = ..., lease_s: _Optional[float] = ..., follows: _Optional[int] = ...) -> None: ...

class MachinesCompared(_message.Message):
    __slots__ = ("nodes", "refused", "told")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    refused: _containers.RepeatedScalarFieldContainer[str]
    told: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ..., refused: _Optional[_Iterable[str]] = ..., told: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckDevice(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class DeviceChecked(_message.Message):
    __slots__ = ("subject", "found", "message", "signals")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    found: bool
    message: str
    signals: _containers.RepeatedCompositeFieldContainer[HealthSignal]
    def __init__(self, subject: _Optional[str] = ..., found: _Optional[bool] = ..., message: _Optional[str] = ..., signals: _Optional[_Iterable[_Union[HealthSignal, _Mapping]]] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "worker", "node", "pid", "boundary", "phase", "state")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker: str
    node: str
    pid: int
    boundary: int
    phase: str
    state: str
    def __init__(self, rank: _Optional[int] = ..., worker: _Optional[str] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., boundary: _Optional[int] = ..., phase: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class Against(_message.Message):
    __slots__ = ("what", "answer", "how")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    what: str
    answer: str
    how: str
    def __init__(self, what: _Optional[str] = ..., answer: _Optional[str] = ..., how: _Optional[str] = ...) -> None: ...

class RankGap(_message.Message):
    __slots__ = ("ranks", "kind", "effect", "text", "file", "line")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    kind: str
    effect: str
    text: str
    file: str
    line: int
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., kind: _Optional[str] = ..., effect: _Optional[str] = ..., text: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("level", "reason", "file", "line", "against", "gaps", "notes", "step_s", "head_s", "gate_s", "barrier_s", "journal_bytes", "memory_bytes", "device_state_bytes", "tensors", "copy_every", "copy_bytes", "copy_s", "copy_sync", "rehearsed", "share", "share_p95", "transfer_encryption", "cause")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    HEAD_S_FIELD_NUMBER: _ClassVar[int]
    GATE_S_FIELD_NUMBER: _ClassVar[int]
    BARRIER_S_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    COPY_EVERY_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPY_S_FIELD_NUMBER: _ClassVar[int]
    COPY_SYNC_FIELD_NUMBER: _ClassVar[int]
    REHEARSED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARE_P95_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    level: str
    reason: str
    file: str
    line: int
    against: _containers.RepeatedCompositeFieldContainer[Against]
    gaps: _containers.RepeatedCompositeFieldContainer[RankGap]
    notes: _containers.RepeatedScalarFieldContainer[str]
    step_s: float
    head_s: float
    gate_s: float
    barrier_s: float
    journal_bytes: int
    memory_bytes: int
    device_state_bytes: int
    tensors: int
    copy_every: int
    copy_bytes: int
    copy_s: float
    copy_sync: bool
    rehearsed: _containers.RepeatedScalarFieldContainer[str]
    share: float
    share_p95: float
    transfer_encryption: str
    cause: str
    def __init__(self, level: _Optional[str] = ..., reason: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., against: _Optional[_Iterable[_Union[Against, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[RankGap, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., step_s: _Optional[float] = ..., head_s: _Optional[float] = ..., gate_s: _Optional[float] = ..., barrier_s: _Optional[float] = ..., journal_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., device_state_bytes: _Optional[int] = ..., tensors: _Optional[int] = ..., copy_every: _Optional[int] = ..., copy_bytes: _Optional[int] = ..., copy_s: _Optional[float] = ..., copy_sync: _Optional[bool] = ..., rehearsed: _Optional[_Iterable[str]] = ..., share: _Optional[float] = ..., share_p95: _Optional[float] = ..., transfer_encryption: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("run_id", "world_size", "generation", "spares_warm", "spares_total", "protection", "protection_reason", "steps_per_s", "migrations_done", "last_migration", "ranks", "reports", "coverage", "quarantine", "health", "spares_wanted", "spares_making", "spares_reason", "ranks_spread", "spread_reason", "spares", "moving")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPARES_WARM_FIELD_NUMBER: _ClassVar[int]
    SPARES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_REASON_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    MIGRATIONS_DONE_FIELD_NUMBER: _ClassVar[int]
    LAST_MIGRATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    SPARES_WANTED_FIELD_NUMBER: _ClassVar[int]
    SPARES_MAKING_FIELD_NUMBER: _ClassVar[int]
    SPARES_REASON_FIELD_NUMBER: _ClassVar[int]
    RANKS_SPREAD_FIELD_NUMBER: _ClassVar[int]
    SPREAD_REASON_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    world_size: int
    generation: int
    spares_warm: int
    spares_total: int
    protection: str
    protection_reason: str
    steps_per_s: float
    migrations_done: int
    last_migration: str
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    reports: _containers.RepeatedScalarFieldContainer[str]
    coverage: _containers.RepeatedCompositeFieldContainer[Coverage]
    quarantine: _containers.RepeatedScalarFieldContainer[str]
    health: _containers.RepeatedScalarFieldContainer[str]
    spares_wanted: int
    spares_making: int
    spares_reason: str
    ranks_spread: int
    spread_reason: str
    spares: _containers.RepeatedCompositeFieldContainer[SpareStatus]
    moving: _containers.RepeatedCompositeFieldContainer[MigrationProgress]
    def __init__(self, run_id: _Optional[str] = ..., world_size: _Optional[int] = ..., generation: _Optional[int] = ..., spares_warm: _Optional[int] = ..., spares_total: _Optional[int] = ..., protection: _Optional[str] = ..., protection_reason: _Optional[str] = ..., steps_per_s: _Optional[float] = ..., migrations_done: _Optional[int] = ..., last_migration: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., reports: _Optional[_Iterable[str]] = ..., coverage: _Optional[_Iterable[_Union[Coverage, _Mapping]]] = ..., quarantine: _Optional[_Iterable[str]] = ..., health: _Optional[_Iterable[str]] = ..., spares_wanted: _Optional[int] = ..., spares_making: _Optional[int] = ..., spares_reason: _Optional[str] = ..., ranks_spread: _Optional[int] = ..., spread_reason: _Optional[str] = ..., spares: _Optional[_Iterable[_Union[SpareStatus, _Mapping]]] = ..., moving: _Optional[_Iterable[_Union[MigrationProgress, _Mapping]]] = ...) -> None: ...

class MigrationProgress(_message.Message):
    __slots__ = ("migration", "phase", "done_bytes", "total_bytes", "elapsed_s", "bytes_per_s", "left_s")
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    migration: str
    phase: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float
    bytes_per_s: float
    left_s: float
    def __init__(self, migration: _Optional[str] = ..., phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., elapsed_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., left_s: _Optional[float] = ...) -> None: ...

class SpareStatus(_message.Message):
    __slots__ = ("worker", "node", "pid", "state", "age_s", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: str
    node: str
    pid: int
    state: str
    age_s: float
    reason: str
    def __init__(self, worker: _Optional[str] = ..., node: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., age_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("time_s", "name", "fields_json")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    name: str
    fields_json: str
    def __init__(self, time_s: _Optional[float] = ..., name: _Optional[str] = ..., fields_json: _Optional[str] = ...) -> None: ...

class MigrateRequest(_message.Message):
    __slots__ = ("rank", "reason", "by")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    reason: str
    by: str
    def __init__(self, rank: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("reason", "by")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    by: str
    def __init__(self, reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class MigrateReply(_message.Message):
    __slots__ = ("accepted", "migration", "message", "again")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    migration: str
    message: str
    again: bool
    def __init__(self, accepted: _Optional[bool] = ..., migration: _Optional[str] = ..., message: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class HealthSignal(_message.Message):
    __slots__ = ("kind", "device", "worker", "code", "value", "age_s", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    device: str
    worker: str
    code: int
    value: float
    age_s: float
    detail: str
    def __init__(self, kind: _Optional[str] = ..., device: _Optional[str] = ..., worker: _Optional[str] = ..., code: _Optional[int] = ..., value: _Optional[float] = ..., age_s: _Optional[float] = ..., detail: _Optional[str] = ...) -> None: ...

class HealthSignals(_message.Message):
    __slots__ = ("signals",)
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    signals: _containers.RepeatedCompositeFieldContainer[HealthSignal]
    def __init__(self, signals: _Optional[_Iterable[_Union[HealthSignal, _Mapping]]] = ...) -> None: ...

class HealthSources(_message.Message):
    __slots__ = ("sources", "devices", "free", "gpus")
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DevicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class GpusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.ScalarMap[str, str]
    devices: _containers.ScalarMap[str, str]
    free: _containers.RepeatedScalarFieldContainer[str]
    gpus: _containers.ScalarMap[str, str]
    def __init__(self, sources: _Optional[_Mapping[str, str]] = ..., devices: _Optional[_Mapping[str, str]] = ..., free: _Optional[_Iterable[str]] = ..., gpus: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("subject", "reason", "check", "by")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reason: str
    check: bool
    by: str
    def __init__(self, subject: _Optional[str] = ..., reason: _Optional[str] = ..., check: _Optional[bool] = ..., by: _Optional[str] = ...) -> None: ...

class ClearReply(_message.Message):
    __slots__ = ("cleared", "message", "checking")
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKING_FIELD_NUMBER: _ClassVar[int]
    cleared: bool
    message: str
    checking: bool
    def __init__(self, cleared: _Optional[bool] = ..., message: _Optional[str] = ..., checking: _Optional[bool] = ...) -> None: ...

class QuarantineRequest(_message.Message):
    __slots__ = ("subject", "reason", "by")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reason: str
    by: str
    def __init__(self, subject: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class QuarantineReply(_message.Message):
    __slots__ = ("accepted", "message", "ranks", "staying")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STAYING_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    staying: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., staying: _Optional[_Iterable[int]] = ...) -> None: ...

class AddSparesRequest(_message.Message):
    __slots__ = ("count", "node", "by")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    count: int
    node: str
    by: str
    def __init__(self, count: _Optional[int] = ..., node: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class AddSparesReply(_message.Message):
    __slots__ = ("accepted", "message", "wanted")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    wanted: int
    def __init__(self, accepted: _Optional[bool] = ..., message: _Optional[str] = ..., wanted: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("signal", "by")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    signal: int
    by: str
    def __init__(self, signal: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("without_progress", "until_now")
    WITHOUT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    without_progress: bool
    until_now: bool
    def __init__(self, without_progress: _Optional[bool] = ..., until_now: _Optional[bool] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
