package nbd

import (
	"log/slog"
	"time"

	"samovar/internal/block"
)

// Options is what a server is made of. Opener is required, zero values of the others mean the defaults named
// here.
type Options struct {
	Opener block.Opener
	Pool   *block.Pool  // for payloads of writes; default: an own one
	Logger *slog.Logger // default: nothing is logged

	NegotiationTimeout time.Duration // from the connection to the export's choice, without its opening; 30 s
	OpenTimeout        time.Duration // for one Opener.Open, Info or List; 2 min
	ReplyTimeout       time.Duration // a client that no longer reads, while its session ends; 30 s
	ShutdownTimeout    time.Duration // for Close, and for Serve when its context ends; 30 s

	MaxSessions int   // more connections are closed at once; 1024
	MaxRequests int   // in flight in one session; 256
	MaxBytes    int64 // in flight in one session, of payloads both ways; 64 MiB, at least 32 MiB
}

func (o Options) withDefaults() Options {
	if o.Opener == nil {
		panic("nbd: Options.Opener is nil")
	}
	if o.Pool == nil {
		o.Pool = block.NewPool()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&o.NegotiationTimeout, 30 * time.Second},
		{&o.OpenTimeout, 2 * time.Minute},
		{&o.ReplyTimeout, 30 * time.Second},
		{&o.ShutdownTimeout, 30 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = 1024
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = 256
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	o.MaxBytes = max(o.MaxBytes, maxPayloadBytes) // the largest request must fit
	return o
}
