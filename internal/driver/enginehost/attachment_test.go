package enginehost

import (
	"context"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// Sessions that end before they are announced are dialled again at once, not after a time-out.
func TestStillbornSessions(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := serving(t, func(r *rig, o *Options) {
		r.copies.stillborn = 4
		o.Engine.PingTimeout, o.Engine.AttachWait = time.Minute, time.Minute
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Fatalf("took %v", took)
	}
	check(t, r.do(r.device(), block.Write, 0, 512, 1))
}

// Another engine's record ends this one, with the name of the other's node.
func TestLost(t *testing.T) {
	t.Parallel()
	r := start(t, func(r *rig, o *Options) { o.Recorder = rival{r.store} })
	err := r.Serving(within(t))
	if !fault.Is(err, fault.Busy) {
		t.Fatal(err)
	}
	<-r.Ended()
	if s := r.Status(); s.Phase != engine.Ended || s.Reason != fault.Busy {
		t.Fatalf("%+v", s)
	}
	if err := r.Detach(within(t)); !fault.Is(err, fault.Busy) {
		t.Fatal(err)
	}
}

// rival writes its own claim before every proposal.
type rival struct{ *register }

func (r rival) Propose(ctx context.Context, next volume.Configuration) (engine.Outcome, volume.Configuration) {
	r.mu.Lock()
	r.record.Epoch++
	r.record.Engine, r.record.Holder = volume.EngineID{9}, "b"
	r.record.Revision++
	r.mu.Unlock()
	return r.register.Propose(ctx, next)
}

// Given up before it serves: whoever waits is told, whatever phase it was in.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*rig) error{
		"abort":  func(r *rig) error { r.Abort(); return nil },
		"detach": func(r *rig) error { return r.Detach(within(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, func(r *rig, _ *Options) { r.store.away = true })
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := r.Serving(ctx); !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
			waits := make(chan error, 1)
			go func() { waits <- r.Serving(context.Background()) }()
			p := r.request(block.Write, 0, 512, 1)
			r.device().Submit([]*block.Request{p.q})
			check(t, end(r))
			if err := <-waits; err == nil {
				t.Fatal("it serves")
			}
			if err := p.wait(); err == nil {
				t.Fatal("written")
			}
		})
	}
}

// While the store is away I/O goes on; detaching waits for it.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	r := serving(t, nil)
	r.store.setAway(true)
	d := r.device()
	check(t, r.do(d, block.Write, 0, 4096, 1))
	check(t, r.do(d, block.Flush, 0, 0, 0))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Detach(ctx); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	r.store.setAway(false)
	check(t, r.Detach(within(t)))
}
