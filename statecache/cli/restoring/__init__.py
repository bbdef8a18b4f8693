"""`checkpoint` and `checkpoints`; `rollback`, `undo` and `redo`; `branch`, `branches` and `merge`."""
