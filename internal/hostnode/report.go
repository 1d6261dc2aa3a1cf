package hostnode

import "time"

// Report is what a node has in flight that its host does not see. It travels as JSON.
type Report struct {
	Flows      []Flow      `json:"flows"`
	Held       []Held      `json:"held"`
	SpaceWaits []SpaceWait `json:"rooms"`
}

// Empty reports whether the node has nothing to report.
func (r Report) Empty() bool { return len(r.Flows)+len(r.Held)+len(r.SpaceWaits) == 0 }

// Flow is a stream to another node, or one through the host in which an emission waits.
type Flow struct {
	Source        uint32        `json:"source"`
	Edge          uint16        `json:"edge"`
	Peer          uint32        `json:"peer"`       // 0: the stream goes through the host
	Deliveries    uint64        `json:"deliveries"` // sent so far
	Bytes         uint64        `json:"bytes"`
	InFlight      int           `json:"under_way"`
	InFlightBytes int64         `json:"under_way_bytes"`
	Queued        int           `json:"queued"`
	Waiting       time.Duration `json:"waiting_ns"` // of the emission that waits longest
}

// Held is a delivery that another node holds.
type Held struct {
	Source uint32        `json:"source"`
	Edge   uint16        `json:"edge"`
	Peer   uint32        `json:"peer"`
	Seq    uint64        `json:"seq"`
	Bytes  int           `json:"bytes"`
	Age    time.Duration `json:"age_ns"`
}

// SpaceWait is an emission that waits for space.
type SpaceWait struct {
	Source  uint32        `json:"source"`
	Waiting time.Duration `json:"waiting_ns"`
	Wanted  string        `json:"wanted"` // what it waits for, as text
}
