"""`make bench`: how fast we are beside raw SQL on the same disk in the same minute. None of it is a test."""
