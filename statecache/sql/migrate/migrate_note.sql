-- Records an applied migration.
INSERT INTO {schema}.migration (number, name) VALUES (%(number)s, %(name)s)
