"""The inspector: a deployment's states, their history, its shards and what was set aside, as pages for a browser.

It is served on loopback, by `statecache inspect`, to whoever knows the URL: a token drawn at every start stands at the
beginning of each path (`guard`). Pages are made here, from templates that escape all that they show; they work without
JavaScript, which only adds what is live. Nothing is loaded from elsewhere.

    guard         who is let in, and what every answer says to browsers
    application   which page answers which path; errors as pages
    source        the connections, and what the pages ask of them
    pages/        one module a subject: what is asked for, and what the template gets
    tree, family  what is drawn, decided from values alone

A page reads a bounded amount, however much there is: lists are paged, of a key's versions only one value is read, or
two that are compared, and of a large value so much is shown as a person can look at. What cannot be read is said in its
place, and the rest of the page is shown. It writes nothing, unless it was started for that; then every write is a
commit like any other, made by a person who has seen what it changes, with an actor and a reason.

It stands on the command line's side: whoever imports `statecache` loads none of it. It needs the extra `web`.
"""
