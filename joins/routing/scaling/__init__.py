"""Units that follow the load: when a side of a join-biclique gets more of them, or fewer."""
