package host

// LastSource is the last number of a source that a client was given.
func LastSource(s *Server) uint32 { return s.sources.Load() }
