"""One module a subject: what a page asks for, and what its template gets."""
