package flow

import (
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// generate is the only type of notification.
const generate = "generate"

// A Notification announces a value to a stage. It is small, and travels over any queue, in
// MessagePack or JSON.
type Notification struct {
	Type           string             `msgpack:"type" json:"type"`
	RequestID      string             `msgpack:"request_id" json:"request_id"`
	SamplingParams any                `msgpack:"sampling_params" json:"sampling_params"`
	FromConnector  bool               `msgpack:"from_connector" json:"from_connector"`
	FromStage      string             `msgpack:"from_stage" json:"from_stage"`
	ToStage        string             `msgpack:"to_stage" json:"to_stage"`
	SentTS         float64            `msgpack:"sent_ts" json:"sent_ts"` // seconds of Unix time
	Metadata       connector.Metadata `msgpack:"connector_metadata,omitempty" json:"connector_metadata,omitempty"`
}

func (n *Notification) edge() connector.Edge {
	return connector.Edge{From: n.FromStage, To: n.ToStage}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
