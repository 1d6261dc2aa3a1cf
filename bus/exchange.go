package bus

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
)

// DefaultExchangeTTL is how long the exchange keeps a payload that no process has
// fetched.
const DefaultExchangeTTL = 10 * time.Minute

// newExchange opens the exchange of a bus.
func newExchange(opts Options) *exchange.Exchange {
	return exchange.New(exchange.Options{
		Store: opts.ExchangeStore, InlineBytes: opts.InlineBytes, TTL: max(opts.ExchangeTTL, 0),
		Logger: opts.Logger.With(slog.String("bus", opts.Name)),
	})
}

// closeExchange closes an exchange, once no client is left.
func closeExchange(x *exchange.Exchange) error {
	if err := x.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotClean, err)
	}
	return nil
}

// Exchange opens a transport of the exchange for the process of the bus: payloads
// under keys, shared with the attached processes (see Exchange of package
// bus/node). The payloads that it puts take memory beside the bus's store: see
// Options.ExchangeStore.
func (b *Bus) Exchange() connector.Transport {
	end, _ := b.OpenExchange(false)
	return end
}

// OpenExchange implements [connector.Exchange]. It does not fail.
func (b *Bus) OpenExchange(lasting bool) (connector.Transport, error) {
	return b.exchange.Open(lasting), nil
}

// ExchangeStats are the figures of an exchange.
type ExchangeStats struct {
	Entries int   `json:"entries"` // payloads that are not fetched yet
	Bytes   int64 `json:"bytes"`   // of these payloads
	Swept   int64 `json:"swept"`   // payloads that were removed unfetched
}

func exchangeStats(x *exchange.Exchange) ExchangeStats {
	if x == nil { // a node's
		return ExchangeStats{}
	}
	return ExchangeStats(x.Stats())
}
