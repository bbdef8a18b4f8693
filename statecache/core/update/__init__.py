"""Updates of one state by many: in turn within a process and between processes."""
