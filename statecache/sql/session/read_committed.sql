-- Has each statement of a transaction see what was committed when it begins, whatever the default isolation is: who has
-- waited for a lock must see what its holder did. It goes before the limits, for any query takes a snapshot.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
