"""The web page that shows states: ``lsmstate ui``."""
