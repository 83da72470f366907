"""The durable half: one set of verbs (`verbs`) over three backends. The only SQL in the repository."""
