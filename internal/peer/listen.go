package peer

import (
	"errors"
	"fmt"
	"io/fs"
)

// maxPathBytes is the longest path of a socket address. The kernel would cut a
// longer one, and two paths could then mean one socket.
const maxPathBytes = 107

// checkPath checks the path of a socket.
func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("socket path: empty")
	case path[0] == '@' || path[0] == 0:
		return fmt.Errorf("socket path %q: it would be an abstract address, which is no file and has no owner; begin it with ./ if it is a file", path)
	case len(path) > maxPathBytes:
		return fmt.Errorf("socket path %s: %d bytes, and the system allows %d; use a shorter one, for example by setting XDG_RUNTIME_DIR", path, len(path), maxPathBytes)
	default:
		return nil
	}
}

// ListenOptions are the options of [Listen]. The zero value admits only this
// user.
type ListenOptions struct {
	// Mode is the mode of the socket file, under any umask; its write bits
	// decide which users may connect. Zero means 0600: the user of this process
	// and root.
	Mode fs.FileMode
	// Backlog bounds the connections that wait for Accept. Zero means 128.
	Backlog int
}

func (o ListenOptions) withDefaults() ListenOptions {
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	if o.Backlog == 0 {
		o.Backlog = 128
	}
	return o
}

// Validate reports the first invalid option.
func (o ListenOptions) Validate() error {
	if o.Mode&^fs.ModePerm != 0 {
		return fmt.Errorf("socket mode %v: only permission bits are allowed", o.Mode)
	}
	if o.Backlog < 0 {
		return fmt.Errorf("backlog %d: it must not be negative", o.Backlog)
	}
	return nil
}
