package segment

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	lockPrefix = "shm_"
	lockSuffix = "_lockfile.lock"
	// semaphorePrefix begins the names of semaphores, which lie in the same
	// directory.
	semaphorePrefix = "sem."
	// anonymousPrefix and 8 digits are the names that Python gives to segments without a name.
	anonymousPrefix = "psm_"
	anonymousDigits = 8
)

// lockName returns the name of the lock file of a segment.
func lockName(name string) string { return lockPrefix + name + lockSuffix }

// anonymous returns a name as Python makes one.
func anonymous() string {
	return fmt.Sprintf("%s%0*x", anonymousPrefix, anonymousDigits, rand.Uint32()) //nolint:gosec // link refuses a name that is taken
}

func isAnonymous(name string) bool {
	digits, ok := strings.CutPrefix(name, anonymousPrefix)
	return ok && len(digits) == anonymousDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// checkName refuses keys that name another kind of file in the directory than a segment.
func checkName(key string) error {
	switch {
	case strings.HasPrefix(key, "."):
		return fmt.Errorf("%w: a segment's name does not begin with a dot", connector.ErrKey)
	case strings.HasPrefix(key, semaphorePrefix):
		return fmt.Errorf("%w: %q begins the names of semaphores", connector.ErrKey, semaphorePrefix)
	case strings.HasPrefix(key, lockPrefix) && strings.HasSuffix(key, lockSuffix):
		return fmt.Errorf("%w: it is the name of a lock", connector.ErrKey)
	}
	return nil
}

// address names the segment of a value.
type address struct {
	name string
	size int64 // 0: the size of the file
}

// fromMetadata reports that there are metadata of the value, so its put has ended.
func (a address) fromMetadata() bool { return a.size > 0 }

// locate returns the address of a value: from its metadata, or from its key if the metadata have
// another format. Metadata come from other processes, and the named segment is read and then
// removed, so the name must be the key or an anonymous one.
func locate(key string, meta connector.Metadata) (address, error) {
	if meta["shm"] == nil {
		return address{name: key}, checkName(key)
	}
	shm := meta.Map("shm")
	if shm == nil {
		return address{}, fmt.Errorf(`%w: "shm" is of type %T: it takes a map with the name and the size of a segment`, connector.ErrMetadata, meta["shm"])
	}
	name, err := shm.Text("name")
	if err != nil {
		return address{}, err
	}
	name = strings.TrimPrefix(name, "/") // shm_open's form
	if name != key && !isAnonymous(name) {
		const most = 64
		return address{}, fmt.Errorf("%w: it names the segment %.*q, which is neither the key nor a name that Python chose: get it with the key of its put",
			connector.ErrMetadata, most, name)
	}
	size, err := shm.Int("size")
	if err != nil {
		return address{}, err
	}
	if size == 0 || size > math.MaxInt {
		return address{}, fmt.Errorf("%w: no segment has %d bytes", connector.ErrMetadata, size)
	}
	if meta["size"] != nil {
		if whole, err := meta.Int("size"); err != nil || whole != size {
			return address{}, fmt.Errorf("%w: a segment of %d bytes, and a size of %v", connector.ErrMetadata, size, meta["size"])
		}
	}
	return address{name, size}, checkName(name)
}
