"""A choice on trial: a few pods of it beside the present ones, behind the same Service, before it is written. Pure."""
