"""torchrun's options that `torchrelay run` does not have, and what to do instead of each."""

from __future__ import annotations

_RENDEZVOUS = (
    "torchrelay has no rendezvous: the machines meet at the controller. Leave this out; with several machines give "
    "--nnodes, --node-rank, --master-addr, and --controller HOST:PORT on all but the one that holds the controller"
)
_OUTPUT = "leave it out; --tee, --redirects and --log-dir are supported"

ADVICE = {
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": _RENDEZVOUS,
    "--rdzv-conf": _RENDEZVOUS,
    "--monitor-interval": "leave it out; torchrelay hears of a process's end at once",
    "--start-method": "leave it out; ranks are always processes of their own",
    "--event-log-handler": "leave it out; --events FILE writes all events",
    "--run-path": "leave it out; the script is always run by an interpreter of its own",
    "--local-ranks-filter": _OUTPUT,
    "--duplicate-stdout-filters": _OUTPUT,
    "--duplicate-stderr-filters": _OUTPUT,
    "--logs-specs": _OUTPUT,
    "--local-addr": "leave it out; the address is the one from which this machine reaches the controller",
    "--numa-binding": "leave it out; bind the whole command instead, as with `numactl`",
    "--signals-to-handle": "leave it out; SIGINT and SIGTERM are passed on to the ranks",
    "--shutdown-timeout": "leave it out",
    "--virtual-local-rank": "leave it out; the script selects its device by LOCAL_RANK",
}


def advice(option: str) -> str | None:
    """Return what to do about an unknown option; None if it is not one of torchrun's."""
    text = ADVICE.get(option.replace("_", "-"))
    return f"torchrun's {option} is not supported: {text}" if text else None
