package client

import (
	"context"
	"net/url"
	"strconv"

	"samovar/internal/api/request"
	"samovar/internal/resource"
)

// Bounds of lists of events.
const (
	EventsLimit = request.EventsLimit // how many come if nothing is said
	MaxEvents   = request.MaxEvents   // how many can be asked for
)

// Version asks what a node runs.
func (c *Client) Version(ctx context.Context) (resource.Version, error) {
	return object[resource.Version](ctx, c, call{op: "ask for the version", method: "GET", path: "/v1/version"})
}

// Status asks for the cluster at a glance.
func (c *Client) Status(ctx context.Context) (resource.Status, error) {
	return object[resource.Status](ctx, c, call{op: "ask for the status", method: "GET", path: "/v1/status"})
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) ([]resource.Node, error) {
	return object[[]resource.Node](ctx, c, call{op: "list nodes", method: "GET", path: "/v1/nodes"})
}

// Node asks for one node.
func (c *Client) Node(ctx context.Context, name string) (node resource.Node, err error) {
	if err := request.NodeName(name); err != nil {
		return node, err
	}
	return object[resource.Node](ctx, c, call{op: "look at node " + name, method: "GET", path: "/v1/nodes/" + name})
}

// Pools lists the pools.
func (c *Client) Pools(ctx context.Context) ([]resource.Pool, error) {
	return object[[]resource.Pool](ctx, c, call{op: "list pools", method: "GET", path: "/v1/pools"})
}

// Pool asks for one pool.
func (c *Client) Pool(ctx context.Context, name string) (pool resource.Pool, err error) {
	if err := request.Name("pool", name); err != nil {
		return pool, err
	}
	return object[resource.Pool](ctx, c, call{op: "look at pool " + name, method: "GET", path: "/v1/pools/" + name})
}

// CreatePool makes a pool.
func (c *Client) CreatePool(ctx context.Context, p resource.NewPool) (pool resource.Pool, err error) {
	if err := request.Pool(p); err != nil {
		return pool, err
	}
	return object[resource.Pool](ctx, c, call{op: "create pool " + p.Name, method: "POST", path: "/v1/pools"}.withJSON(p))
}

// Volumes lists the volumes.
func (c *Client) Volumes(ctx context.Context) ([]resource.Volume, error) {
	return object[[]resource.Volume](ctx, c, call{op: "list volumes", method: "GET", path: "/v1/volumes"})
}

// Volume asks for one volume.
func (c *Client) Volume(ctx context.Context, name string) (volume resource.Volume, err error) {
	if err := request.Name("volume", name); err != nil {
		return volume, err
	}
	return object[resource.Volume](ctx, c, call{op: "look at volume " + name, method: "GET", path: "/v1/volumes/" + name})
}

// CreateVolume makes a volume.
func (c *Client) CreateVolume(ctx context.Context, v resource.NewVolume) (volume resource.Volume, err error) {
	if err := request.Volume(v); err != nil {
		return volume, err
	}
	return object[resource.Volume](ctx, c, call{op: "create volume " + v.Name, method: "POST", path: "/v1/volumes"}.withJSON(v))
}

// DeleteVolume deletes a volume and its copies.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	if err := request.Name("volume", name); err != nil {
		return err
	}
	_, err := c.fetch(ctx, call{op: "delete volume " + name, method: "DELETE", path: "/v1/volumes/" + name})
	return err
}

// Attach starts a volume's engine on a node: the one that a names, or the one that answers.
func (c *Client) Attach(ctx context.Context, name string, a resource.Attach) (attachment resource.Attachment, err error) {
	if err := request.Name("volume", name); err != nil {
		return attachment, err
	}
	if err := request.Attach(a); err != nil {
		return attachment, err
	}
	return object[resource.Attachment](ctx, c, call{op: "attach volume " + name, method: "POST", path: "/v1/volumes/" + name + "/attach"}.withJSON(a))
}

// Detach ends a volume's engine, wherever it runs.
func (c *Client) Detach(ctx context.Context, name string) error {
	if err := request.Name("volume", name); err != nil {
		return err
	}
	_, err := c.fetch(ctx, call{op: "detach volume " + name, method: "POST", path: "/v1/volumes/" + name + "/detach"})
	return err
}

// Events lists events, oldest first: the newest limit ones, or the first limit ones behind the event since.
// A limit of 0 leaves the number to the node.
func (c *Client) Events(ctx context.Context, since string, limit int) ([]resource.Event, error) {
	query := url.Values{}
	if since != "" {
		query.Set("since", since)
	}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return object[[]resource.Event](ctx, c, call{op: "list events", method: "GET", path: "/v1/events", query: query})
}

// Internal is a call from node to node.
func (c *Client) Internal(ctx context.Context, name string, body []byte) ([]byte, error) {
	if err := request.Call(name); err != nil {
		return nil, err
	}
	return c.fetch(ctx, call{op: "call " + name, method: "POST", path: "/v1/internal/" + name,
		body: body, media: "application/octet-stream"})
}
