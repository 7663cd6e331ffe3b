"""Lets several ranks share one GPU: NCCL refuses a device twice on one host, so each process names itself another host.

The folder of this file is put onto PYTHONPATH by the check.
"""

import os
import socket

os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"
