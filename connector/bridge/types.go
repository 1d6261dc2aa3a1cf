package bridge

import (
	"context"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// The names of the engines in the bridge.
const (
	mooncake = "mooncake"
	yuanrong = "yuanrong"
	nixl     = "nixl"
	transfer = "mooncake-engine"
)

// metadataKeys lists the metadata that a get sends to an engine. They come from its put, or from
// vLLM-Omni's.
var metadataKeys = map[string][]string{
	nixl:     {"schema_version", "generation", "sender_host", "sender_zmq_port", "source_host", "source_port"},
	transfer: {"source_host", "source_port", "data_size"},
}

// sharesKeys lists the engines with one value for a key on all edges.
var sharesKeys = map[string]bool{nixl: true}

// The options that this package reads, by their keys in configurations.
const (
	optTimeout = "timeout"
	optPython  = "python"
)

// Types returns the types, for a registry.
func Types() []connector.Type {
	return []connector.Type{
		newType("MooncakeStoreConnector", mooncake, mooncakeOptions),
		newType("MooncakeConnector", mooncake, mooncakeOptions),
		newType("YuanrongConnector", yuanrong, yuanrongOptions),
		newType("NixlConnector", nixl, nixlOptions),
		newType("MooncakeTransferEngineConnector", transfer, transferOptions),
	}
}

func newType(name, engine string, options []connector.Option) connector.Type {
	options = append([]connector.Option{
		{Key: optTimeout, Kind: connector.Duration, Default: 30 * time.Second, Min: 1, Doc: "How long a put or a get may take."},
		{Key: optPython, Kind: connector.Text, Default: "python3", Doc: "The interpreter that has the Python client with its extra for this engine."},
	}, options...)
	return connector.Type{Name: name, Options: options, Open: func(ctx context.Context, config connector.Config) (connector.Transport, error) {
		return open(ctx, engine, options, config)
	}}
}

var mooncakeOptions = []connector.Option{
	{Key: "host", Kind: connector.Text, Default: "127.0.0.1", Doc: "The address of this host, by which other clients reach it."},
	{Key: "master", Kind: connector.Text, Default: "127.0.0.1:50051", Doc: "The address of the master."},
	{Key: "metadata_server", Kind: connector.Text, Default: "http://127.0.0.1:8080/metadata", Doc: "The metadata server, or P2PHANDSHAKE for none."},
	{Key: "segment", Kind: connector.Integer, Default: int64(512 << 20), Doc: "The memory that this client lends the store, in bytes."},
	{Key: "localbuf", Kind: connector.Integer, Default: int64(64 << 20), Min: 1, Doc: "The memory through which this client's values pass, in bytes: the largest value."},
	{Key: "proto", Kind: connector.Text, Default: "tcp", Doc: "How clients reach each other's memory: tcp or rdma."},
	{Key: "rdma", Kind: connector.Text, Default: "", Doc: "The devices of rdma."},
}

var yuanrongOptions = []connector.Option{
	{Key: "host", Kind: connector.Text, Default: "127.0.0.1", Doc: "The address of the worker."},
	{Key: "port", Kind: connector.Integer, Default: int64(35001), Min: 1, Max: 65535, Doc: "The port of the worker."},
	{Key: "ttl", Kind: connector.Duration, Default: 10 * time.Minute, Doc: "After how long the worker removes a value by itself, in whole seconds; 0 is never."},
}

var peerOptions = []connector.Option{
	{Key: "host", Kind: connector.Text, Default: "127.0.0.1", Doc: "The address of this host, at which the listener is and by which others reach it; auto is the one towards others."},
	{Key: "zmq_port", Kind: connector.Integer, Default: int64(0), Max: 65535, Doc: "The port of the listener; 0 is a free one, which metadata tell."},
	{Key: "role", Kind: connector.Text, Default: "both", Choices: []string{"both", "sender", "receiver"}, Doc: "A receiver has no listener, and puts nothing."},
	{Key: "sender_host", Kind: connector.Text, Default: "", Doc: "The address of the sender of values without metadata."},
	{Key: "sender_zmq_port", Kind: connector.Integer, Default: int64(0), Max: 65535, Doc: "The port of the listener there."},
	{Key: "memory_pool_size", Kind: connector.Integer, Default: int64(512 << 20), Min: 1, Doc: "The memory for what was put and what is being got, in bytes: the largest value."},
}

var nixlOptions = append([]connector.Option{
	{Key: "lease_seconds", Kind: connector.Duration, Default: time.Hour, Doc: "After how long a value is removed that no process has claimed."},
	{Key: "transfer_timeout_s", Kind: connector.Duration, Default: 5 * time.Minute, Min: 1, Doc: "How long others read at most; a value that was claimed is removed after twice as long."},
}, peerOptions...)

var transferOptions = append([]connector.Option{
	{Key: "protocol", Kind: connector.Text, Default: "tcp", Doc: "How processes reach each other's memory: tcp or rdma."},
	{Key: "device_name", Kind: connector.Text, Default: "", Doc: "The devices of rdma."},
	{Key: "memory_pool_device", Kind: connector.Text, Default: "cpu", Choices: []string{"cpu"}, Doc: "Where the memory is."},
	{Key: "buffer_ttl_seconds", Kind: connector.Duration, Default: 5 * time.Minute, Doc: "After how long a value is removed that no process has asked for; 0 is never."},
}, peerOptions...)
