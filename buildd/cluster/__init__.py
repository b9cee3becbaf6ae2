"""Jobs on the nodes of a Ray cluster: what travels, the bridge to the cluster, and what a node does."""
