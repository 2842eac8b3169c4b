package etcd

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"samovar/internal/fault"
)

// pool chooses the endpoint for the next call. It stays with one as long as that one serves: calls move it on when
// they fail, and the prober moves it on when the member in use falls silent or has no leader, so that watches and
// idle clients notice as well.
type pool struct {
	endpoints []*endpoint
	interval  time.Duration
	timeout   time.Duration
	logger    *slog.Logger

	mu      sync.Mutex
	current int
	cluster uint64 // the cluster that is spoken to; 0: not known yet
}

func newPool(opts Options) (*pool, error) {
	const op = "open the cluster store"
	if len(opts.Endpoints) == 0 {
		return nil, fault.New(fault.Invalid, op, "no endpoints are given")
	}
	p := &pool{interval: opts.ProbeInterval, timeout: opts.ProbeTimeout, logger: opts.Logger}
	if opts.ClusterID != "" {
		id, err := strconv.ParseUint(opts.ClusterID, 16, 64)
		if err != nil {
			return nil, fault.New(fault.Invalid, op, "the cluster id "+opts.ClusterID+" is not 16 hexadecimal digits")
		}
		p.cluster = id
	}
	for _, address := range opts.Endpoints {
		ep, err := newEndpoint(address)
		if err != nil {
			p.close()
			return nil, err
		}
		p.endpoints = append(p.endpoints, ep)
	}
	return p, nil
}

func (p *pool) close() error {
	var errs []error
	for _, ep := range p.endpoints {
		ep.letGo()
		errs = append(errs, ep.conn.Close())
	}
	return errors.Join(errs...)
}

// pick gives the endpoint for a call.
func (p *pool) pick() *endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints[p.current]
}

// avoid moves on from ep, if it is still the one in use.
func (p *pool) avoid(ep *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints[p.current] == ep {
		p.current = (p.current + 1) % len(p.endpoints)
	}
}

// choose moves to ep.
func (p *pool) choose(ep *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.endpoints {
		if p.endpoints[i] == ep {
			p.current = i
		}
	}
}

// admit asks ep whether it serves our cluster. Nothing else is sent to a member that has not passed it since it was
// last silent: a write must not land in a foreign cluster at the same address.
func (p *pool) admit(ctx context.Context, ep *endpoint) error {
	theirs, led, err := ep.ask(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.cluster == 0 {
		p.cluster = theirs
	}
	ours := p.cluster
	p.mu.Unlock()
	if theirs != ours {
		return errForeign{ours: ours, theirs: theirs}
	}
	if !led {
		return errLeaderless{}
	}
	ep.admitted.Store(true)
	return nil
}

// probe watches the endpoints in use until ctx ends.
func (p *pool) probe(ctx context.Context) {
	leaderless := map[*endpoint]int{}
	for wait(ctx, p.interval) {
		current := p.pick()
		for ep, err := range p.askAll(ctx, func(ep *endpoint) bool { return ep == current || ep.inUse.Load() > 0 }) {
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				leaderless[ep] = 0
				continue
			case errors.As(err, new(errLeaderless)):
				// During an election everybody is without a leader for a moment; twice in a row it is the member.
				if leaderless[ep]++; leaderless[ep] < 2 {
					continue
				}
			default:
				p.logger.Debug("a cluster store endpoint does not answer", "endpoint", ep.address, "error", err)
				ep.admitted.Store(false)
				ep.letGo()
			}
			if ep == current {
				p.replace(ctx, ep)
			}
		}
	}
}

// replace finds an endpoint that serves instead of ep. If none does, the calls go on looking.
func (p *pool) replace(ctx context.Context, ep *endpoint) {
	results := p.askAll(ctx, func(other *endpoint) bool { return other != ep })
	for _, other := range p.endpoints {
		if err, asked := results[other]; asked && err == nil {
			p.logger.Info("changed the cluster store endpoint", "from", ep.address, "to", other.address)
			p.choose(other)
			return
		}
	}
}

// askAll admits the wanted endpoints at once and waits for all.
func (p *pool) askAll(ctx context.Context, wanted func(*endpoint) bool) map[*endpoint]error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var mu sync.Mutex
	results := map[*endpoint]error{}
	var group sync.WaitGroup
	for _, ep := range p.endpoints {
		if !wanted(ep) {
			continue
		}
		group.Go(func() {
			err := p.admit(ctx, ep)
			mu.Lock()
			defer mu.Unlock()
			results[ep] = err
		})
	}
	group.Wait()
	return results
}

// wait sleeps for d and tells whether ctx lives on.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
