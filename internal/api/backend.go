package api

import (
	"context"

	"samovar/internal/resource"
)

// Backend is the cluster behind the server. The control plane implements it; the server calls it from many
// goroutines at once, after it has checked the form of names and requests.
//
// Errors carry a fault.Kind: its text goes to people as it is, and says the way out. A context ends when the
// caller goes away, at the server's deadline, or when the server closes; a change that has begun may go on.
type Backend interface {
	Version(ctx context.Context) (resource.Version, error)
	Status(ctx context.Context) (resource.Status, error)

	Nodes(ctx context.Context) ([]resource.Node, error)
	Node(ctx context.Context, name string) (resource.Node, error)

	Pools(ctx context.Context) ([]resource.Pool, error)
	Pool(ctx context.Context, name string) (resource.Pool, error)
	CreatePool(ctx context.Context, p resource.NewPool) (resource.Pool, error)

	Volumes(ctx context.Context) ([]resource.Volume, error)
	Volume(ctx context.Context, name string) (resource.Volume, error)
	CreateVolume(ctx context.Context, v resource.NewVolume) (resource.Volume, error)
	DeleteVolume(ctx context.Context, name string) error
	Attach(ctx context.Context, name string, a resource.Attach) (resource.Attachment, error)
	Detach(ctx context.Context, name string) error
	// Verify compares all copies. It may call progress, from any goroutine, with the bytes compared so far and
	// the bytes in all; not after it has returned.
	Verify(ctx context.Context, name string, progress func(done, todo uint64)) (resource.Verified, error)

	// Events lists events, oldest first: the newest limit ones, or, if since is not empty, the first limit ones
	// whose id sorts behind since as a string. Ids are one sequence for the whole cluster.
	Events(ctx context.Context, since string, limit int) ([]resource.Event, error)
	// Follow sends events as they happen: those behind since, or from now on if since is empty. The channel is
	// closed when ctx ends, and when the follower is too slow or the source is lost: it can then ask again.
	Follow(ctx context.Context, since string) (<-chan resource.Event, error)

	// Internal answers a call from node to node, which the API carries without knowing it.
	Internal(ctx context.Context, call string, body []byte) ([]byte, error)
}
