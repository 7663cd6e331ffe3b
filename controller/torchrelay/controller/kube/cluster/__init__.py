"""What the controller reads of the cluster: pods, nodes, quarantines, the policy of those who run it. Changes nothing."""
