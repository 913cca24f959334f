"""Settings by the names of torch.compile's: what each means here (`table`), and who sets them
(`store`). `dovetail.config` holds those of the process, `compile(options=...)` those of a call."""
