//go:build unix

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// signalCode returns the exit code of a process that a signal ended, as in shells.
func signalCode(state *os.ProcessState) int {
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return 1
}

// privateFolder makes sure that no other user can replace the host's socket: the folder may lie in a
// directory that all users share.
func privateFolder(dir string) error {
	err := os.MkdirAll(filepath.Dir(dir), 0o700)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("no folder for sockets: %w: set XDG_RUNTIME_DIR to one of your own, or name a socket in the pipeline file", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	switch s, ok := info.Sys().(*syscall.Stat_t); {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory: remove it, or set XDG_RUNTIME_DIR", dir)
	case ok && int(s.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to user %d: other users could place sockets there; set XDG_RUNTIME_DIR to a directory of your own", dir, s.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to %s (mode %v): they could place sockets there; chmod 700 it, or set XDG_RUNTIME_DIR", dir, info.Mode().Perm())
	}
	return nil
}
