// Command etcd is the stock etcd server; its own module keeps main out of reach of `go build`.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
