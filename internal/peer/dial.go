package peer

// DialOptions are the options of [Dial]. The zero value trusts only this user.
type DialOptions struct {
	// AllowUIDs are users whose listeners are trusted, in addition to the user of
	// this process.
	AllowUIDs []uint32
}
