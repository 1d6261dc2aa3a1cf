package bus

import "github.com/omnibus-runtime/omnibus/cudaipc/lane"

// Directory is where processes find each other's descriptors, for the process
// that hosts the bus: what it publishes is found by the processes that are
// attached, and what they publish by it (see Directory of package bus/node). It ends with the
// bus, and fails with [lane.ErrUnavailable] then.
func (b *Bus) Directory() lane.Directory { return b.directory }
