// Package kv is the vocabulary of the cluster's record store: an ordered map of small records with revisions,
// leases and watches, agreed on by a majority.
//
// Consumers and tests speak these types; package etcd implements Store over the network and package etcdtest in
// memory. It must not know etcd, sockets or what the records mean; it imports fault and nothing else of the
// project, so a package that needs only these words does not link a database.
//
//	            Applied    it happened, at Revision
//	write  -->  Conflict   it did not happen: a condition was false; Current says what stands there
//	            NotApplied it did not happen: refused, or never sent
//	            Unknown    the request left and no answer came: it may have happened or may still happen
//
// Nothing in this layer repeats a write whose effect is unknown: only the caller can tell, by reading the record,
// whether its own change or another one stands there.
package kv

import (
	"context"
	"time"
)

// Prefix stands before every key in the database, so that an external etcd can be shared and a later layout can
// live beside this one. Keys in this API are relative to it.
const Prefix = "/samovar/v1/"

// LeaseID names a lease. Zero: none.
type LeaseID int64

// MaxTTL bounds a lease: etcd takes years, which would be a mistake here.
const MaxTTL = 24 * time.Hour

// KV is one record.
type KV struct {
	Key            string
	Value          []byte
	CreateRevision int64   // revision that created the key
	ModRevision    int64   // revision that wrote it last; the one CompareAndSwap expects
	Lease          LeaseID // the key goes when this lease goes
}

// Listing is every record under a prefix at one revision, in order of the keys.
type Listing struct {
	Revision int64
	Items    []KV
}

// Store is the cluster's record store. Reads are linearizable. Every call ends at the deadline of its context or
// after the store's own call timeout, whichever is first. Errors are *fault.Error: Unavailable when no majority
// answered, NotFound, Invalid, Aborted when the caller gave up, Foreign for another cluster, Shutdown after Close.
// Implementations are safe for use by many goroutines.
type Store interface {
	// Get reads one record; NotFound when there is none.
	Get(ctx context.Context, key string) (KV, error)
	// List reads every record whose key starts with prefix ("" is everything).
	List(ctx context.Context, prefix string) (Listing, error)
	// Revision is the present revision of the whole store.
	Revision(ctx context.Context) (int64, error)
	// ClusterID names the cluster that answers. It changes when the cluster is made anew.
	ClusterID(ctx context.Context) (string, error)

	// Put writes without a condition.
	Put(ctx context.Context, key string, value []byte) Outcome
	// Delete removes a key. A key that is absent is Applied as well.
	Delete(ctx context.Context, key string) Outcome
	// CompareAndSwap writes if the key's ModRevision is expect; 0 means that the key must not exist. The key is
	// bound to lease, or to none with 0. On Conflict, Current holds the record that stands there, if any.
	CompareAndSwap(ctx context.Context, key string, expect int64, value []byte, lease LeaseID) Outcome
	// Txn makes all changes at one revision if all conditions hold, and none otherwise.
	Txn(ctx context.Context, conditions []Condition, changes []Change) Outcome

	// Grant makes a lease and keeps it alive. The TTL is rounded up to seconds; the store may raise it.
	Grant(ctx context.Context, ttl time.Duration) (Session, error)

	// Watch delivers what happens under prefix from revision from on; 0 begins with a Resync. It goes on over
	// lost connections, and delivers a Resync where changes cannot be had one by one. A reader that is slow gets
	// a Resync later, not a growing queue. The channel is closed when ctx ends or the store is closed.
	Watch(ctx context.Context, prefix string, from int64) <-chan Event

	// Close abandons the sessions, ends the watches and waits for both.
	Close() error
}

// Session is a lease that is kept alive. Keys bound to it go when it ends.
type Session interface {
	Lease() LeaseID
	// TTL is the granted time to live.
	TTL() time.Duration
	// Lost is closed when the lease is not kept any more: it expired, it was revoked, or no renewal was confirmed
	// for a TTL counted from the sending of the last confirmed one. So it closes before the store drops the keys,
	// as far as this process runs; after a pause of the process the keys can be gone already. The holder stops
	// what it did under the lease and may call Grant again.
	Lost() <-chan struct{}
	// Close revokes the lease: its keys go at once.
	Close(ctx context.Context) error
	// Abandon stops renewing without revoking: the keys stay until the TTL has passed.
	Abandon()
}

// Event is one step of a watched prefix. Applying all events in order gives the prefix as it stood at Revision.
type Event struct {
	Revision int64
	// Resync says that Items is the whole prefix at Revision: every other key is gone.
	Resync bool
	// Items are the changes of exactly one revision (a transaction is never split), or the whole list.
	Items []Item
}

// Item is a record that was written, or the key and the revision of a deletion.
type Item struct {
	KV
	Deleted bool
}
