package peer

// DialOptions are the options of [Dial]. The zero value believes this user alone.
type DialOptions struct {
	// AllowUIDs are the users whose listener may be connected to, besides the one
	// that this process runs as.
	AllowUIDs []uint32
}
