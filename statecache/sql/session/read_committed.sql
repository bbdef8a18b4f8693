-- Says the isolation, before any query takes a snapshot.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
