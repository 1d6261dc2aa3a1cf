package bus

import "github.com/omnibus-runtime/omnibus/cudaipc/lane"

// Directory is the directory of descriptors that the process of the bus shares with
// the attached processes: each finds the descriptors that another has published (see
// Directory of package bus/node). It ends with the bus; its calls then fail with
// [lane.ErrUnavailable].
func (b *Bus) Directory() lane.Directory { return b.directory }
