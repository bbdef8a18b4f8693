"""What a user calls: the client, its views, transactions, leases, and how it goes down."""
