"""How the controller talks to the Kubernetes API: requests, mirrors of objects, the lease."""
