package kv

// Split returns the header that Decode reads, and the data behind it.
func Split(src []byte) (text, data []byte, err error) { return split(src) }
