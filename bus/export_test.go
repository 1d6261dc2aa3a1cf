package bus

import "github.com/omnibus-runtime/omnibus/shmstore"

// HeldBytes is what readers of the store still hold.
func HeldBytes(b *Bus) (n int64) {
	_ = b.writer.Do(func(s *shmstore.Store) {
		for _, h := range s.Holders() {
			n += h.Bytes
		}
	})
	return n
}

// CutOff ends a node's connection as if its host had died.
func CutOff(n *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.link.conn.Close()
}

// LastSource is the last number of a source that a client was given.
func LastSource(s *Server) uint32 { return s.sources.Load() }

// ExchangeStalls are those of processes that wait for the exchange, however short.
func ExchangeStalls(s *Server) []Stall { return s.exchangeStalls(0, false) }

// SpeakVersion has a node take its host for one of an older version.
func SpeakVersion(n *Node, version uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.link.welcome.Version = version
}
