"""A store for LangGraph: what agents remember across threads, each item a state that can be read as JSON."""
