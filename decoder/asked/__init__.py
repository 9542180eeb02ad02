"""What a caller asks for: options named and checked in one table, prompts as token ids, one `Request` for each call."""
